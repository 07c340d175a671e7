//! A list as text (`nvlist_print`): what `zstream dump` shows of a stream's lists, and `zfs send -t` of a token.

use super::{NvList, NvValue};
use std::fmt::{Display, Formatter, Result};

impl Display for NvList {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        list(f, self, 0)
    }
}

fn indent(f: &mut Formatter<'_>, depth: usize) -> Result {
    (0..depth).try_for_each(|_| f.write_str("\t"))
}

fn list(f: &mut Formatter<'_>, of: &NvList, depth: usize) -> Result {
    indent(f, depth)?;
    writeln!(f, "nvlist version: 0")?;
    for (name, value) in &of.pairs {
        pair(f, name, value, depth)?;
        writeln!(f)?;
    }
    Ok(())
}

fn pair(f: &mut Formatter<'_>, name: &str, value: &NvValue, depth: usize) -> Result {
    let text = match value {
        NvValue::NvList(inner) => {
            indent(f, depth + 1)?;
            writeln!(f, "{name} = (embedded nvlist)")?;
            list(f, inner, depth + 1)?;
            indent(f, depth + 1)?;
            return writeln!(f, "(end {name})");
        }
        NvValue::NvListArray(all) => {
            indent(f, depth + 1)?;
            writeln!(f, "{name} = (array of embedded nvlists)")?;
            for (i, inner) in all.iter().enumerate() {
                indent(f, depth + 1)?;
                writeln!(f, "(start {name}[{i}])")?;
                list(f, inner, depth + 1)?;
                indent(f, depth + 1)?;
                writeln!(f, "(end {name}[{i}])")?;
            }
            return Ok(());
        }
        plain => text(plain),
    };
    // Of an array without elements not even the name is shown.
    let Some(text) = text else { return Ok(()) };
    indent(f, depth + 1)?;
    write!(f, "{name} = {text}")
}

/// A value that is no list; `None`: an array without elements.
fn text(value: &NvValue) -> Option<String> {
    fn all<T>(values: &[T], one: impl Fn(&T) -> String) -> Option<String> {
        let texts: Vec<String> = values.iter().map(one).collect();
        (!texts.is_empty()).then(|| texts.join(" "))
    }
    Some(match value {
        NvValue::Boolean => "1".into(),
        NvValue::BooleanValue(v) => u8::from(*v).to_string(),
        NvValue::Byte(v) => format!("{v:#04x}"),
        NvValue::Int8(v) => v.to_string(),
        NvValue::Uint8(v) => format!("{v:#x}"),
        NvValue::Int16(v) => v.to_string(),
        NvValue::Uint16(v) => format!("{v:#x}"),
        NvValue::Int32(v) => v.to_string(),
        NvValue::Uint32(v) => format!("{v:#x}"),
        NvValue::Int64(v) => v.to_string(),
        NvValue::Uint64(v) => format!("{v:#x}"),
        NvValue::Hrtime(v) => format!("{v:#x}"),
        NvValue::Double(v) => format!("0x{v:.6}"),
        NvValue::String(v) => v.clone(),
        NvValue::ByteArray(v) => return all(v, |v| format!("{v:#04x}")),
        NvValue::BooleanArray(v) => return all(v, |v| u8::from(*v).to_string()),
        NvValue::Int8Array(v) => return all(v, ToString::to_string),
        NvValue::Uint8Array(v) => return all(v, |v| format!("{v:#x}")),
        NvValue::Int16Array(v) => return all(v, ToString::to_string),
        NvValue::Uint16Array(v) => return all(v, |v| format!("{v:#x}")),
        NvValue::Int32Array(v) => return all(v, ToString::to_string),
        NvValue::Uint32Array(v) => return all(v, |v| format!("{v:#x}")),
        NvValue::Int64Array(v) => return all(v, ToString::to_string),
        NvValue::Uint64Array(v) => return all(v, |v| format!("{v:#x}")),
        NvValue::StringArray(v) => return all(v, String::clone),
        NvValue::NvList(_) | NvValue::NvListArray(_) => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_nest() {
        let inner = NvList { pairs: vec![("a".into(), NvValue::Uint64(0x1f))] };
        let pairs = vec![
            ("flag".into(), NvValue::Boolean),
            ("zero".into(), NvValue::Uint8(0)),
            ("many".into(), NvValue::Uint64Array(vec![1, 20])),
            ("none".into(), NvValue::Uint64Array(vec![])),
            ("in".into(), NvValue::NvList(inner.clone())),
            ("two".into(), NvValue::NvListArray(vec![inner])),
        ];
        let expected = "nvlist version: 0\n\tflag = 1\n\tzero = 0x0\n\tmany = 0x1 0x14\n\n\
            \tin = (embedded nvlist)\n\tnvlist version: 0\n\t\ta = 0x1f\n\t(end in)\n\n\
            \ttwo = (array of embedded nvlists)\n\t(start two[0])\n\tnvlist version: 0\n\
            \t\ta = 0x1f\n\t(end two[0])\n\n";
        assert_eq!(NvList { pairs }.to_string(), expected);
    }
}

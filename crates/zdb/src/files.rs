//! `zdb -O`: an object by the path of a file; `-r`: copies an object out.

use super::args::number;
use super::{Zdb, failed};
use cenote_command::outcome::{Outcome, Stop, fail};
use cenote_zpl::FileSystem;
use std::io::Write;
use std::sync::Arc;

/// Bytes read at a time.
const CHUNK: usize = 1 << 20;

impl Zdb<'_> {
    /// `-O dataset path`, `-r dataset path destination`, `-r -O dataset object destination` (`dump_path`).
    pub fn files(&mut self, dataset: &str) -> Outcome {
        let pool = self.pool.clone();
        let Some(found) = pool.dsl().find(dataset).map_err(failed)? else {
            return fail(format!(
                "zdb: failed to hold dataset '{dataset}': No such file or directory"
            ));
        };
        let os = pool.dsl().open_objset(&found).map_err(failed)?;
        let fs = FileSystem::open(os.clone()).map_err(failed)?;
        let what = self.args.operands.get(1).cloned().unwrap_or_default();
        let object = match (self.args.has('O'), self.args.has('r')) {
            (true, true) => match number(&what) {
                Some(n) => n,
                None => return fail(format!("zdb: bad object number '{what}'")),
            },
            _ => match fs.resolve(what.as_bytes()) {
                Ok(ino) => ino,
                Err(e) => {
                    return fail(format!("failed to lookup dataset={dataset} path=/{what}: {e}"));
                }
            },
        };
        if self.args.has('r') {
            let to = self.args.operands.get(2).cloned().unwrap_or_default();
            return self.copy(&fs, object, &to);
        }
        let mut header = true;
        self.object(&os.object(object).map_err(failed)?, &mut header)?;
        Ok(0)
    }

    /// Writes the contents of a file to the file `to` (`zdb_copy_object`).
    fn copy(&mut self, fs: &Arc<FileSystem>, object: u64, to: &str) -> Outcome {
        writeln!(self.out(), "Copying object {object} to file {to}")?;
        let size = fs.attr(object).map_err(failed)?.size;
        writeln!(self.out(), "Object {object} is {size} bytes")?;
        let path = self.ctx.caller.path(to);
        let write = |e: std::io::Error| Stop::Fail(format!("zdb: {to}: {e}"));
        let mut file = std::fs::File::create(&path).map_err(write)?;
        let mut buffer = vec![0; CHUNK];
        let mut offset = 0;
        while offset < size && !self.ctx.cancel.is_cancelled() {
            let n = fs.read(object, offset, &mut buffer).map_err(failed)?;
            if n == 0 {
                break;
            }
            file.write_all(buffer.get(..n).unwrap_or_default()).map_err(write)?;
            offset += n as u64;
        }
        Ok(0)
    }
}

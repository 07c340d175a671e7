//! `zstream token`: what is in a resume token (`zstream_do_token`).

use crate::Surroundings;
use cenote_command::outcome::{Outcome, fail};
use cenote_format::nvlist::NvValue;
use cenote_format::stream::token::Token;

/// Runs `zstream token`.
///
/// # Errors
/// It is no token.
pub fn run(text: &str, ctx: &mut Surroundings<'_>) -> Outcome {
    let token = match Token::decode(text) {
        Ok(token) => token,
        Err(e) => return fail(format!("Unable to parse resume token: {e}")),
    };
    for (name, value) in &token.to_list().pairs {
        match value {
            NvValue::Uint64(number) => writeln!(ctx.out, "     {name}: {number}")?,
            NvValue::String(text) => writeln!(ctx.out, "     {name}: '{text}'")?,
            NvValue::Uint64Array(numbers) => {
                for (i, number) in numbers.iter().enumerate() {
                    writeln!(ctx.out, "     {name}[{i}]: {number}")?;
                }
            }
            _ => writeln!(ctx.out, "     {name}")?,
        }
    }
    Ok(0)
}

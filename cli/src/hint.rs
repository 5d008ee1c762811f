//! What to do next about a failure, by its kind.

use tensorc::{Error, ErrorKind};
use tensorc_data::{Cause, DataError};

use super::failure::{CliFailure, InFile, Usage};

/// One line, if there is something to say; `command` is what was called.
pub fn of(failure: &CliFailure, command: &str) -> Option<String> {
    if failure.is::<Usage>() {
        return Some(format!("`tensorc {command} --help` describes the options, with examples"));
    }
    about(kind(failure)?)
}

/// The kind of a failure that has one.
fn kind(failure: &CliFailure) -> Option<ErrorKind> {
    if let Some(error) = failure.downcast_ref::<Error>() {
        return Some(error.kind());
    }
    if let Some(InFile { source, .. }) = failure.downcast_ref() {
        return Some(source.kind());
    }
    match failure.downcast_ref::<DataError>()? {
        DataError::At { cause: Cause::Io(error), .. } => Some(match error.kind() {
            std::io::ErrorKind::NotFound => ErrorKind::NotFound,
            std::io::ErrorKind::InvalidData | std::io::ErrorKind::UnexpectedEof => ErrorKind::Format,
            _ => ErrorKind::File,
        }),
        DataError::At { cause: Cause::Truncated { .. } | Cause::Format(_), .. } => Some(ErrorKind::Format),
        DataError::Memory(_) => Some(ErrorKind::Memory),
        _ => None,
    }
}

fn about(kind: ErrorKind) -> Option<String> {
    let text = match kind {
        ErrorKind::NotFound => {
            let folder = std::env::current_dir().ok()?;
            return Some(format!(
                "paths are relative to the current folder, {}",
                folder.display().to_string().escape_debug()
            ));
        }
        ErrorKind::Format => {
            "is the file complete, and of the right kind? Models: ONNX, MXNet symbols (.json), text IR (.tc); arrays: .npz, .npy"
        }
        ErrorKind::Unsupported => {
            "`tensorc ops NAME` describes operators; docs/limits.md lists what is refused, docs/add-an-operator.md how to add one"
        }
        ErrorKind::Undecided => {
            "--value NAME=X makes an input a constant, and --shape NAME=N,… gives extents: branches that these decide are known then"
        }
        ErrorKind::Input => "`tensorc inspect MODEL` shows the inputs; without --input, random arrays are taken",
        ErrorKind::Parameters => "--params FILE gives the parameters of an MXNet symbol, such as net-0000.params",
        ErrorKind::Shape => {
            "`tensorc inspect MODEL` shows inputs with their types and shapes; --shape NAME=N,… gives the extents of one, or of a named \
             dimension"
        }
        ErrorKind::Limit => {
            "--limit raises limits, as in --limit memory=8GiB,time=2h; `tensorc doctor` shows the memory there is"
        }
        ErrorKind::Memory => "a smaller batch takes less memory (--shape); `tensorc doctor` shows how much there is",
        ErrorKind::Gpu if cfg!(feature = "cuda") => "`tensorc doctor` shows drivers, GPUs and libraries",
        ErrorKind::Gpu => {
            "GPUs need a build with `--features cuda`; --device=interpreted interprets GPU kernels without one"
        }
        ErrorKind::Link => "--linker or $CC names another C compiler; `tensorc doctor` shows those of this machine",
        ErrorKind::Internal => "this is a fault of tensorc: please report it with the model and the command line",
        _ => return None,
    };
    Some(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_are_one_line() {
        let all = [
            ErrorKind::NotFound,
            ErrorKind::Format,
            ErrorKind::Undecided,
            ErrorKind::Unsupported,
            ErrorKind::Input,
            ErrorKind::Parameters,
            ErrorKind::Shape,
            ErrorKind::Limit,
            ErrorKind::Memory,
            ErrorKind::Gpu,
            ErrorKind::Link,
            ErrorKind::Internal,
        ];
        for kind in all {
            let hint = about(kind);
            assert!(hint.as_ref().is_some_and(|text| !text.contains('\n')), "{kind:?}: {hint:?}");
        }
    }

    #[test]
    fn failures_of_any_crate_have_kinds() {
        let missing = || std::io::Error::from(std::io::ErrorKind::NotFound);
        let of_data: CliFailure = DataError::io("in.npz", missing()).into();
        let of_model: CliFailure = Error::Read { path: "m.tc".into(), source: missing() }.into();
        assert_eq!(kind(&of_data), Some(ErrorKind::NotFound));
        assert_eq!(kind(&of_model), Some(ErrorKind::NotFound));
        assert_eq!(kind(&"a text".into()), None);
        assert!(of(&Usage("wrong".into()).into(), "run").is_some_and(|text| text.contains("tensorc run --help")));
    }
}

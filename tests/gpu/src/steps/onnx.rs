//! The backend test cases of the ONNX project, against the results that are stored with them.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs::File;
use std::rc::Rc;

use tensorc_tests::onnx::{Archive, CASES, EXPECTED_ERRORS, Outcome, ROOT, lines, run_case};

use super::{Case, Ended};
use crate::context::{Context, Fault, data};

/// Name of the file in the bundle's data.
pub const FILE: &str = "onnx.zip";

pub fn cases(cx: &Context) -> Result<Vec<Case>, Fault> {
    let path = data().join(FILE);
    let file = match File::open(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let absent = Case::new("all", |_| Ok(Ended::skipped("the bundle was made without the cases")));
            return Ok(vec![absent]);
        }
        other => other.map_err(|e| format!("{}: {e}", path.display()))?,
    };
    let archive = Rc::new(RefCell::new(Archive::new(file)?));
    let compiler = cx.compiler()?;
    let refused: BTreeSet<&str> = lines(EXPECTED_ERRORS).filter_map(|line| line.split('\t').next()).collect();
    let case = |name: &'static str| {
        let (archive, compiler) = (archive.clone(), compiler.clone());
        let here = archive.borrow_mut().by_name(&format!("{ROOT}{name}/model.onnx")).is_ok();
        Case::new(name, move |_| match run_case(&compiler, &mut archive.borrow_mut(), name) {
            _ if !here => Ok(Ended::skipped("its data are too large for the bundle")),
            Outcome::Passed => Ok(Ended::passed()),
            Outcome::Refused(stage, why) => Err(format!("refused ({stage}): {why}").into()),
            Outcome::Wrong(why) => Err(why.into()),
            Outcome::Panicked(why) => Err(format!("panicked: {why}").into()),
        })
    };
    Ok(lines(CASES).filter(|name| !refused.contains(name)).map(case).collect())
}

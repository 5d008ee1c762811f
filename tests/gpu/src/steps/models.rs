//! Real models against results of ONNX Runtime that are stored with the tests.

use std::fs;
use std::path::PathBuf;

use tensorc_tests::models;

use super::{Case, Ended};
use crate::context::{Context, Fault, data};
use crate::protocol::folder_name;

/// Models that the interpreter of kernels is through with in less than a minute.
const QUICK: [&str; 3] = ["mtcnn-pnet", "mtcnn-rnet", "silero-vad"];

/// Where the bundle has a model.
fn file(id: &str) -> PathBuf {
    data().join("models").join(format!("{}.onnx", folder_name(id)))
}

pub fn cases(_: &Context) -> Result<Vec<Case>, Fault> {
    let case = |model: models::Case| {
        Case::new(model.id, move |cx| {
            let Ok(bytes) = fs::read(file(model.id)) else {
                return Ok(Ended::skipped("not in the bundle: too large, or it could not be fetched"));
            };
            if cx.is_interpreted() && !QUICK.contains(&model.id) {
                return Ok(Ended::skipped("takes minutes in the interpreter"));
            }
            let wrong = model.run(&cx.compiler()?, bytes.into());
            if wrong.is_empty() { Ok(Ended::passed()) } else { Err(wrong.join("; ").into()) }
        })
    };
    Ok(models::cases().into_iter().map(case).collect())
}

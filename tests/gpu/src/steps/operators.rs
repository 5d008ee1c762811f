//! Every operator that takes some operands, as a graph and called on arrays, against the reference interpreter.

use std::collections::BTreeMap;
use std::rc::Rc;

use tensorc::ir::op::OpRef;
use tensorc::{Compiler, DType, Options};
use tensorc_nd::{Runtime, RuntimeOptions};
use tensorc_random::{Candidate, candidates};
use tensorc_tests::operators::{Verdict, has_defined_bits, judge};

use super::{Case, Ended};
use crate::context::{Context, Fault};

/// Candidates of an operator that are run for each element type of its first operand.
const OF_A_TYPE: usize = 1;
/// Candidates of an operator that are run in all.
const OF_AN_OPERATOR: usize = 5;
/// Candidates that are looked at.
const TRIED: usize = 400;

/// A compiler that rounds as the reference does, and a runtime whose arrays are on the device.
struct Judge {
    compiler: Compiler,
    arrays: Runtime,
}

impl Judge {
    fn new(cx: &Context) -> Result<Judge, Fault> {
        let mut options = Options { threads: Some(1), ..cx.options()? };
        options.passes.reassociate = false;
        // Operands are drawn without regard to what operators demand of them.
        options.passes.clamp_indices = true;
        let compiler = Compiler::new(options)?;
        let device = cx.driver()?.device();
        let arrays = Runtime::with_compiler(compiler.clone(), RuntimeOptions { device, ..RuntimeOptions::default() })?;
        Ok(Judge { compiler, arrays })
    }

    fn examine(&self, op: &OpRef) -> Result<Ended, Fault> {
        let registry = self.compiler.registry();
        // Functions of f64 are expanded on a GPU, and differ from the reference in the last place.
        let bits = |dtype| has_defined_bits(op) && dtype != DType::F64;
        let (mut of_type, mut agree) = (BTreeMap::new(), 0);
        for candidate in candidates(op).into_iter().take(TRIED) {
            let count = of_type.entry(first_type(&candidate)).or_insert(0);
            if *count == OF_A_TYPE || agree == OF_AN_OPERATOR {
                continue;
            }
            match judge(&self.compiler, &self.arrays, registry, op, &candidate, bits) {
                Verdict::NotTaken => {}
                Verdict::Agrees => (*count, agree) = (*count + 1, agree + 1),
                Verdict::Fails(why) if why.contains("has no code for a GPU") => *count += 1,
                Verdict::Fails(why) => return Err(format!("{candidate}: {why}").into()),
            }
        }
        match agree {
            0 => Ok(Ended::skipped("none of the tried operands has code")),
            _ => Ok(Ended::passed().note(format!("{agree} sets of operands"))),
        }
    }
}

fn first_type(candidate: &Candidate) -> Option<&'static str> {
    candidate.inputs.first().map(|input| input.dtype().name())
}

pub fn cases(cx: &Context) -> Result<Vec<Case>, Fault> {
    let judge = Rc::new(Judge::new(cx)?);
    let registry = judge.compiler.registry();
    let case = |op: &OpRef| {
        let (judge, op) = (judge.clone(), op.clone());
        Case::new(op.name, move |_| judge.examine(&op))
    };
    Ok(registry.iter().map(case).collect())
}

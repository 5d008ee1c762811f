//! Branches and loops that the host runs: their types differ from one iteration to the next, or are not known before a run. Each body
//! is a graph of its own ([`super::scope`]), so that nothing of it is compiled for one shape alone.

use std::rc::Rc;
use std::sync::Arc;

use tensorc_abi::DType;
use tensorc_ir::flow::{Flow, FlowKind, Loop};
use tensorc_ir::graph::Value;
use tensorc_ir::scalar::Scalar;
use tensorc_ir::{TensorData, TensorType};

use super::carried::Carried;
use super::flow::LoopSite;
use super::import::Importer;
use super::load::Opsets;
use super::meaning::Meaning;
use super::proto::GraphProto;
use super::scope::{CommonType, OwnBody};
use super::unsupported::{Stop, UNDECIDED, UNLIKE, unsupported};
use super::upgrade::ValueFacts;
use super::writer::NodeWriter;

/// Types of what a body gives.
struct BodyTypes {
    carried: Vec<Carried>,
    stacked: Vec<CommonType>,
}

/// A loop and the operands that are its own.
struct HostLoop<'s> {
    site: &'s LoopSite<'s>,
    scanned: Vec<String>,
    rows: Vec<CommonType>,
}

impl Importer<'_> {
    /// A loop whose body the host runs; names of its results.
    pub(super) fn hosted_loop(&mut self, site: &LoopSite<'_>) -> Result<Vec<String>, Stop> {
        let label = site.body.label().clone();
        let limit = match site.trips.filter(|_| site.counts) {
            Some(trips) => {
                let most = TensorData::scalar(Scalar::i64(trips.fixed()));
                Some(NodeWriter { importer: self, label: &label }.constant(most))
            }
            None => site.limit.clone(),
        };
        let site = &LoopSite { limit, trips: None, cut: false, ..site.clone() };
        let mut host = HostLoop { site, scanned: vec![], rows: vec![] };
        for (name, direction) in &site.scanned {
            let name = self.along_first(name, direction.axis, &label)?;
            host.rows.push(self.common_type(&name)?.row());
            host.scanned.push(name);
        }
        let mut types = site.initial.iter().map(|name| self.carried(name)).collect::<Result<Vec<_>, _>>()?;
        loop {
            let before = (self.unsupported.clone(), self.invalid.take(), self.declared.len());
            let body = self.hosted_body(&host, &types);
            if let Ok(body) = &body
                && let Some(common) = common(&types, &body.found.carried)?
            {
                // What the body says of narrower types is said again of those that hold in every iteration.
                types = common;
                (self.unsupported, self.invalid) = (before.0, before.1);
                self.declared.truncate(before.2);
                continue;
            }
            self.invalid = before.1.or(self.invalid.take());
            return self.hosted_results(&host, &types, body?);
        }
    }

    fn hosted_body(&mut self, host: &HostLoop<'_>, types: &[Carried]) -> Result<OwnBody<BodyTypes>, Stop> {
        let (site, label) = (host.site, host.site.body.label().clone());
        self.within("body", |body| {
            let number = body.body_input("iteration", &CommonType { dtype: DType::I64, dims: vec![] });
            let mut arguments = vec![];
            if site.counts {
                let always = TensorData::scalar(Scalar::bool(true));
                let always = NodeWriter { importer: body, label: &label }.constant(always);
                arguments.extend([number.clone(), always]);
            }
            arguments.extend(types.iter().map(|ty| body.carried_input("carried", ty)));
            arguments.extend(host.rows.iter().map(|ty| body.body_input("row", ty)));
            let mut results = body.iteration(site.body, arguments)?;
            let mut outputs = vec![];
            if site.counts {
                let condition = results.remove(0);
                let given = body.known(&condition).ok().and_then(|data| data.item()).map(|c| c.as_bool());
                if !site.conditioned && given != Some(true) {
                    return unsupported("it has no condition, and its body computes one that is not known to hold");
                }
                if site.limit.is_none() && given == Some(true) {
                    return unsupported("nothing ends it");
                }
                outputs.push(body.next_iteration(site, &condition, &number, &label)?);
            }
            let stacked = results.split_off(types.len());
            let carried = results.iter().map(|name| body.carried(name)).collect::<Result<_, _>>()?;
            let rows = stacked.iter().map(|name| body.common_type(name)).collect::<Result<_, _>>()?;
            outputs.extend(stacked);
            outputs.extend(body.all_tensors(&results, types, &label)?);
            body.body_outputs(&outputs)?;
            Ok(BodyTypes { carried, stacked: rows })
        })
    }

    fn body_outputs(&mut self, names: &[String]) -> Result<(), Stop> {
        for (i, value) in self.tensors(names)?.into_iter().enumerate() {
            self.graph.add_output(format!("{i}"), value);
        }
        Ok(())
    }

    fn hosted_results(
        &mut self,
        host: &HostLoop<'_>,
        types: &[Carried],
        body: OwnBody<BodyTypes>,
    ) -> Result<Vec<String>, Stop> {
        let (site, label) = (host.site, host.site.body.label().clone());
        let first = if site.counts { Some(self.first_iteration(site, &label)?) } else { None };
        let initial = self.all_tensors(&site.initial, types, &label)?;
        let carried = initial.len();
        let args: Vec<String> =
            first.into_iter().chain(initial).chain(host.scanned.iter().chain(&body.captured).cloned()).collect();
        let repeat = Loop {
            trips: None,
            conditional: site.counts,
            carried,
            scanned: site.scanned.iter().map(|(_, d)| d.backwards).collect(),
            stacked: site.stacked.iter().map(|d| d.backwards).collect(),
        };
        let tensors = types.iter().flat_map(Carried::tensors);
        let made = tensors.chain(body.found.stacked.iter().map(CommonType::stacked)).collect::<Vec<_>>();
        let flow = Flow { kind: FlowKind::Loop(repeat), bodies: vec![body.graph], by_host: true };
        let made = self.add_hosted(flow, &args, &made, &label)?;
        let names = self.named(site, &made, carried)?;
        let mut results = self.carried_results(types, &names[..carried], &label);
        results.extend_from_slice(&names[carried..]);
        Ok(results)
    }

    /// The tensors that hold values of these types.
    fn all_tensors(&mut self, names: &[String], types: &[Carried], label: &Arc<str>) -> Result<Vec<String>, Stop> {
        let mut tensors = vec![];
        for (name, ty) in names.iter().zip(types) {
            tensors.extend(self.carried_tensors(name, ty, label)?);
        }
        Ok(tensors)
    }

    fn add_hosted(
        &mut self,
        flow: Flow,
        args: &[String],
        types: &[CommonType],
        label: &Arc<str>,
    ) -> Result<Vec<Value>, Stop> {
        let args = self.tensors(args)?;
        let name = |port: usize| if port == 0 { label.to_string() } else { format!("{label}.{port}") };
        let types: Vec<_> =
            types.iter().enumerate().map(|(port, ty)| ty.in_graph(&mut self.graph, &name(port))).collect();
        let count = types.len() as u16;
        let node = self.graph.add_flow(label.clone(), flow, &args, types);
        Ok((0..count).map(|port| Value { node, port }).collect())
    }

    /// An `If` of which the host runs one branch: what its results stand for.
    pub(super) fn hosted_branches(
        &mut self,
        condition: &str,
        [then, otherwise]: [GraphProto; 2],
        opsets: &Rc<Opsets>,
        label: &Arc<str>,
    ) -> Result<Vec<Meaning>, Stop> {
        let mut expected: Option<Vec<Carried>> = None;
        let (types, [mut first, second]) = loop {
            let given = expected.as_deref();
            let first = self.hosted_branch("then", (then.clone(), given), &[], opsets, label)?;
            let second = self.hosted_branch("else", (otherwise.clone(), given), &first.captured, opsets, label)?;
            let types = first.found.iter().zip(&second.found).map(|(a, b)| a.with(b)).collect::<Option<Vec<_>>>();
            let Some(types) = types else {
                return unsupported(UNLIKE);
            };
            // A sequence that has no tensor in one branch is held by as many tensors as in the other.
            let held =
                |found: &[Carried]| found.iter().zip(&types).all(|(a, b)| a.tensors().len() == b.tensors().len());
            if expected.is_some() || held(&first.found) && held(&second.found) {
                break (types, [first, second]);
            }
            expected = Some(types);
        };
        for name in &second.captured[first.captured.len()..] {
            first.graph.add_input(name.as_str(), TensorType::unknown());
        }
        let args: Vec<String> = [condition.to_owned()].into_iter().chain(second.captured).collect();
        let flow = Flow { kind: FlowKind::If, bodies: vec![first.graph, second.graph], by_host: true };
        let tensors: Vec<CommonType> = types.iter().flat_map(Carried::tensors).collect();
        let mut names = vec![];
        for value in self.add_hosted(flow, &args, &tensors, label)? {
            let name = self.fresh_name(label);
            self.values.insert(name.clone(), Meaning::Tensor(value));
            names.push(name);
        }
        let results = self.carried_results(&types, &names, label);
        self.meanings(&results)
    }

    /// A branch, whose first inputs stand for the given names, with results of the expected types, or of those that it has.
    fn hosted_branch(
        &mut self,
        name: &str,
        (branch, expected): (GraphProto, Option<&[Carried]>),
        captured: &[String],
        opsets: &Rc<Opsets>,
        label: &Arc<str>,
    ) -> Result<OwnBody<Vec<Carried>>, Stop> {
        self.within(name, |body| {
            captured.iter().try_for_each(|name| body.capture(name))?;
            let results = body.inline(branch, &[], opsets, label)?;
            let types = results.iter().map(|name| body.carried(name)).collect::<Result<Vec<_>, _>>()?;
            let tensors = body.all_tensors(&results, expected.unwrap_or(&types), label)?;
            body.body_outputs(&tensors)?;
            Ok(types)
        })
    }
}

/// What types before and after an iteration have in common, if that is less than was known before.
fn common(before: &[Carried], after: &[Carried]) -> Result<Option<Vec<Carried>>, Stop> {
    if before.len() != after.len() {
        return unsupported(UNDECIDED);
    }
    let both = before.iter().zip(after).map(|(a, b)| a.with(b)).collect::<Option<Vec<_>>>();
    match both {
        Some(both) => Ok((both != before).then_some(both)),
        None => unsupported("it carries a value whose element type or rank changes"),
    }
}

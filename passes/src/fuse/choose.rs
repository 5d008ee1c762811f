//! Choosing between the clusters of greedy fusion and others, region by region.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::panic::resume_unwind;

use tensorc_ir::graph::{NodeId, Value};
use tensorc_ir::parallel::try_map;
use tensorc_schedule::cost::CostModel;

use super::alternatives;
use super::operands;
use super::plan::{FusionPlan, Unit};
use super::price::{Price, Prices};
use super::regions::{self, FusionRegion};
use super::siblings::{self, Output};

/// Replaces clusters of greedy fusion where others are cheaper, looked for on up to `threads` threads. `exact`: clusters that
/// decide the order of additions stay as they are, so that results have the same bits.
pub fn improve(plan: &mut FusionPlan<'_>, machine: &CostModel, exact: bool, threads: usize) {
    let read = plan.read_values();
    let regions = regions::divide(plan, &read, exact);
    let prices = Prices::new(plan, machine);
    let listed: BTreeSet<usize> = regions.iter().flat_map(|r| r.clusters.iter().copied()).collect();
    let whole = |plan: &FusionPlan<'_>, c: usize| -> Output { (plan.clusters[c].clone(), stored(plan, c, &read)) };
    let fixed: Vec<Output> = plan
        .unit_order()
        .into_iter()
        .filter_map(|unit| match unit {
            Unit::Cluster(c) if !listed.contains(&c) => Some(whole(plan, c)),
            _ => None,
        })
        .collect();
    let greedy: Vec<Vec<Output>> =
        regions.iter().map(|r| r.clusters.iter().map(|c| whole(plan, *c)).collect()).collect();
    let look = |region: &FusionRegion| Ok::<_, Infallible>(best(plan, &prices, region));
    let Ok(found) = try_map(regions.iter().collect(), threads, look, |panic| resume_unwind(panic));
    let found = found.into_iter().zip(&greedy).map(|(found, greedy)| found.unwrap_or_else(|| greedy.clone())).collect();
    let mut chosen = greedy.clone();
    let mut least: Vec<Price> = greedy.iter().map(|list| price(plan, &prices, list)).collect();
    for trial in [greedy, found] {
        let lists = merged(plan, &prices, &fixed, &trial);
        for (i, list) in lists.into_iter().enumerate() {
            let cost = price(plan, &prices, &list);
            if cost.beats(&least[i]) {
                (chosen[i], least[i]) = (list, cost);
            }
        }
    }
    assign(plan, &fixed, &chosen);
}

fn best(plan: &FusionPlan<'_>, prices: &Prices<'_>, region: &FusionRegion) -> Option<Vec<Output>> {
    let mut found = alternatives::best(plan, prices, region)?;
    // Operands first, so that siblings are near each other.
    found.sort_by_key(|(_, roots)| roots.first().map(|n| plan.rank(*n)));
    Some(found)
}

/// Nodes of a cluster that others read.
fn stored(plan: &FusionPlan<'_>, cluster: usize, read: &BTreeSet<Value>) -> Vec<NodeId> {
    let mut nodes: Vec<NodeId> = plan.outputs(cluster, read).into_iter().map(|v| v.node).collect();
    nodes.dedup();
    nodes
}

/// Makes the plan consist of these clusters; returns their ids, list by list.
fn assign(plan: &mut FusionPlan<'_>, fixed: &[Output], lists: &[Vec<Output>]) -> Vec<Vec<usize>> {
    plan.clear();
    let mut adopt = |list: &[Output]| -> Vec<usize> {
        list.iter().map(|(cluster, outputs)| plan.adopt(cluster.clone(), outputs)).collect()
    };
    adopt(fixed);
    lists.iter().map(|list| adopt(list)).collect()
}

/// The lists with contractions merged with what computes their operands, and siblings merged.
fn merged(plan: &mut FusionPlan<'_>, prices: &Prices<'_>, fixed: &[Output], lists: &[Vec<Output>]) -> Vec<Vec<Output>> {
    let ids = assign(plan, fixed, lists);
    let lists = lists.iter().zip(ids).map(|(list, mut ids)| {
        let mut outputs = list.iter().map(|(_, outputs)| outputs.clone()).collect();
        operands::merge(plan, prices, &mut ids, &mut outputs);
        siblings::merge(plan, prices, &mut ids, &mut outputs);
        ids.iter().map(|c| plan.clusters[*c].clone()).zip(outputs).collect()
    });
    lists.collect()
}

fn price(plan: &FusionPlan<'_>, prices: &Prices<'_>, list: &[Output]) -> Price {
    let one = |(cluster, outputs): &Output| {
        let ports = |n: &NodeId| {
            let n = *n;
            (0..plan.types(n).len() as u16).map(move |port| Value { node: n, port })
        };
        let outputs: Vec<Value> = outputs.iter().flat_map(ports).collect();
        prices.of(plan, cluster, &cluster.externals(plan), &outputs)
    };
    list.iter().map(one).sum()
}

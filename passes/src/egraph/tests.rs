//! Extraction against the best of all choices, against trees, and on graphs where trees explode.

use std::collections::BTreeMap;

use egg::{EGraph, Extractor, Id, Language, SymbolLang};
use tensorc_random::Rng;

use super::extract;

type Graph = EGraph<SymbolLang, ()>;

/// Costs by the name of the e-node: the digits behind the last underscore.
fn price(enode: &SymbolLang) -> u64 {
    enode.op.as_str().rsplit('_').next().and_then(|n| n.parse().ok()).unwrap_or(1)
}

/// A random e-graph with cycles and shared classes; every class has a form without a cycle.
fn random(rng: &mut Rng) -> (Graph, Vec<Id>) {
    let mut egraph = Graph::default();
    let classes = 3 + rng.below(6);
    let mut ids: Vec<Id> = vec![];
    for class in 0..classes {
        let operands = (0..rng.below(3).min(class)).map(|_| ids[rng.below(class) as usize]).collect();
        let name = format!("f{class}_{}", 1 + rng.below(20));
        ids.push(egraph.add(SymbolLang::new(name, operands)));
    }
    for alternative in 0..rng.below(10) {
        let class = ids[rng.below(classes) as usize];
        let operands = (0..rng.below(4)).map(|_| ids[rng.below(classes) as usize]).collect();
        let name = format!("g{alternative}_{}", rng.below(20));
        let other = egraph.add(SymbolLang::new(name, operands));
        egraph.union(class, other);
    }
    egraph.rebuild();
    let roots = (0..1 + rng.below(3)).map(|_| ids[rng.below(classes) as usize]).collect();
    (egraph, roots)
}

/// The cost of what `roots` need under a choice; `None` if the choice has a cycle.
fn cost_of(egraph: &Graph, roots: &[Id], choice: &BTreeMap<Id, &SymbolLang>) -> Option<u64> {
    let (mut done, mut open, mut total) = (vec![], vec![], 0);
    let mut stack: Vec<(Id, bool)> = roots.iter().map(|r| (egraph.find(*r), false)).collect();
    while let Some((class, finished)) = stack.pop() {
        if finished {
            open.retain(|c| *c != class);
            done.push(class);
            total += price(choice[&class]);
        } else if open.contains(&class) {
            return None;
        } else if !done.contains(&class) {
            open.push(class);
            stack.push((class, true));
            let operands = choice[&class].children().iter().map(|c| egraph.find(*c));
            stack.extend(operands.filter(|c| !done.contains(c)).map(|c| (c, false)));
        }
    }
    Some(total)
}

/// The least cost over all choices.
fn optimum(egraph: &Graph, roots: &[Id]) -> u64 {
    let classes: Vec<_> = egraph.classes().collect();
    let choices: usize = classes.iter().map(|c| c.nodes.len()).product();
    let costs = (0..choices).filter_map(|mut number| {
        let mut choice = BTreeMap::new();
        for class in &classes {
            choice.insert(class.id, &class.nodes[number % class.nodes.len()]);
            number /= class.nodes.len();
        }
        cost_of(egraph, roots, &choice)
    });
    costs.min().expect("every class has a form")
}

/// Checks that the extraction holds what it says, operands first, and returns its cost.
fn check(egraph: &Graph, roots: &[Id]) -> u64 {
    let found = extract(egraph, roots, |_, n| Some(price(n))).expect("extracted");
    for (at, (class, enode)) in found.nodes().iter().enumerate() {
        assert_eq!(found.position(*class), Some(at));
        assert!(egraph[*class].nodes.contains(enode));
        let before = |c: &Id| found.position(egraph.find(*c)).is_some_and(|p| p < at);
        assert!(enode.children().iter().all(before), "operands come first");
    }
    assert!(roots.iter().all(|r| found.position(egraph.find(*r)).is_some()));
    assert_eq!(found.cost(), found.nodes().iter().map(|(_, n)| price(n)).sum::<u64>());
    found.cost()
}

#[test]
fn near_the_optimum_and_never_above_trees() {
    struct Price;
    impl egg::CostFunction<SymbolLang> for Price {
        type Cost = u64;
        fn cost<C: FnMut(Id) -> u64>(&mut self, enode: &SymbolLang, mut costs: C) -> u64 {
            enode.fold(price(enode), |sum, id| sum.saturating_add(costs(id)))
        }
    }
    let (mut optimal, mut cases, mut excess) = (0, 0, 0.0f64);
    for seed in 0..3000 {
        let (egraph, roots) = random(&mut Rng::new(seed));
        let trees = Extractor::new(&egraph, Price);
        let choice = egraph.classes().map(|c| (c.id, trees.find_best_node(c.id))).collect();
        let tree = cost_of(&egraph, &roots, &choice).unwrap_or(u64::MAX);
        let (found, best) = (check(&egraph, &roots), optimum(&egraph, &roots));
        assert!(best <= found && found <= tree, "seed {seed}: best {best}, found {found}, trees {tree}");
        cases += 1;
        optimal += u32::from(found == best);
        excess = excess.max(found as f64 / best.max(1) as f64);
    }
    println!("{optimal} of {cases} optimal, at most {excess:.3} times the optimum");
    assert!(optimal * 1000 >= cases * 995);
}

/// `layers` times `f(x, g(x))`, where `g` has a costlier form of one e-node less.
fn residual(layers: usize) -> (Graph, Id) {
    let mut egraph = Graph::default();
    let mut x = egraph.add(SymbolLang::leaf("x_1"));
    for layer in 0..layers {
        let inner = egraph.add(SymbolLang::new(format!("h{layer}_3"), vec![x]));
        let outer = egraph.add(SymbolLang::new(format!("k{layer}_3"), vec![inner]));
        let fused = egraph.add(SymbolLang::new(format!("hk{layer}_7"), vec![x]));
        egraph.union(outer, fused);
        x = egraph.add(SymbolLang::new(format!("add{layer}_2"), vec![x, outer]));
    }
    egraph.rebuild();
    (egraph, x)
}

#[test]
fn sharing_is_paid_once_in_deep_graphs() {
    for layers in [10, 3000] {
        let (egraph, root) = residual(layers);
        assert_eq!(check(&egraph, &[root]), 1 + 8 * layers as u64);
    }
}

#[test]
fn a_shared_operand_decides() {
    let mut egraph = Graph::default();
    let (a, b, s) = (SymbolLang::leaf("a_6"), SymbolLang::leaf("b_6"), SymbolLang::leaf("s_9"));
    let [a, b, s] = [a, b, s].map(|leaf| egraph.add(leaf));
    let roots: Vec<Id> = [("p", a), ("q", b)]
        .map(|(name, own)| {
            let alone = egraph.add(SymbolLang::new(format!("{name}_1"), vec![own]));
            let shared = egraph.add(SymbolLang::new(format!("{name}s_1"), vec![s]));
            egraph.union(alone, shared);
            alone
        })
        .to_vec();
    egraph.rebuild();
    // Each root alone is cheaper without the shared operand, both together with it.
    assert_eq!(check(&egraph, &roots[..1]), 7);
    assert_eq!(check(&egraph, &roots), 11);
}

#[test]
fn what_has_no_finite_form_is_not_extracted() {
    let mut egraph = Graph::default();
    let x = egraph.add(SymbolLang::leaf("x"));
    let fx = egraph.add(SymbolLang::new("f", vec![x]));
    egraph.union(x, fx);
    egraph.rebuild();
    assert_eq!(extract(&egraph, &[x], |_, _| Some(1)).expect("the leaf").nodes().len(), 1);
    assert!(extract(&egraph, &[x], |_, n| (!n.is_leaf()).then_some(1)).is_none());
}

//! Reports about models as pages: what they hold, and how they work in a browser.

mod browser;

use std::fs;
use std::path::PathBuf;

use browser::Browser;
use serde_json::{Value, json};
use tensorc::report::{ModelReport, ReportRequest};
use tensorc::{Compiler, Model, Options, Tensor};
use tensorc_frontend::onnx::proto::*;

use crate::support::examples;
use crate::support::onnx_models::*;

const UNMEASURED: ReportRequest = ReportRequest { repeat: None };

fn compiler() -> Compiler {
    Compiler::new(Options { threads: Some(2), ..Options::default() }).unwrap()
}

/// A model of which a report is made, from memory.
fn loaded(compiler: &Compiler, graph: GraphProto) -> Model {
    compiler.load_bytes("test.onnx", encoded(&model(graph))).unwrap()
}

fn page(model: &Model, inputs: &[Tensor], request: &ReportRequest) -> String {
    ModelReport::of(model, inputs, request).unwrap().named("test").html()
}

/// The data of a page.
fn data(page: &str) -> Value {
    let start = page.split("<script type=\"application/json\" id=\"data\">").nth(1).unwrap();
    serde_json::from_str(start.split("</script>").next().unwrap()).unwrap()
}

/// The names of nodes in a page.
fn names(data: &Value) -> Vec<String> {
    let mut before: Vec<u16> = vec![];
    let decode = |name: &Value| {
        before.truncate(name[0].as_u64().unwrap() as usize);
        before.extend(name[1].as_str().unwrap().encode_utf16());
        String::from_utf16(&before).unwrap()
    };
    data["nodes"]["names"].as_array().unwrap().iter().map(decode).collect()
}

fn images(batch: u64) -> Tensor {
    let n = batch * 64;
    Tensor::from_f32(&[batch, 1, 8, 8], &(0..n).map(|i| (i % 17) as f32 / 16.0).collect::<Vec<_>>()).unwrap()
}

/// Nodes in scopes: `blocks` of ten.
fn blocks(blocks: usize) -> GraphProto {
    let mut nodes = vec![];
    let mut x = "x".to_owned();
    for block in 0..blocks {
        let scope = format!("/group.{}/block.{block}", block / 50);
        let mut add = |op: &str, name: &str, inputs: &[&str]| {
            let output = format!("{scope}/{name}_out");
            let made = NodeProto { name: Some(format!("{scope}/{name}")), ..node(op, inputs, &[&output]) };
            nodes.push(made);
            output
        };
        let product = add("MatMul", "attend/MatMul", &[&x, "w"]);
        let sum = add("Add", "attend/Add", &[&product, "b"]);
        let soft = add("Softmax", "attend/Softmax", &[&sum]);
        let joined = add("Add", "residual/Add", &[&soft, &x]);
        let wide = add("MatMul", "mlp/MatMul", &[&joined, "w"]);
        let shifted = add("Add", "mlp/Add", &[&wide, "b"]);
        let active = add("Tanh", "mlp/Tanh", &[&shifted]);
        let scaled = add("Mul", "mlp/Mul", &[&active, "b"]);
        let turned = add("Sigmoid", "gate/Sigmoid", &[&joined]);
        x = add("Mul", "gate/Mul", &[&scaled, &turned]);
    }
    let mut graph = graph(vec![value("x", DataType::Float, &[2, 8])], nodes, &[&x]);
    let numbers = |n: usize| (0..n).map(|i| (i * 7 % 13) as f32 / 26.0 - 0.2).collect::<Vec<_>>();
    graph.initializer = vec![f32s("w", &[8, 8], &numbers(64)), f32s("b", &[8], &numbers(8))];
    graph
}

fn x() -> Tensor {
    Tensor::from_f32(&[2, 8], &[0.5; 16]).unwrap()
}

#[test]
fn the_same_model_gives_the_same_page() {
    let pages = [(); 2].map(|()| {
        let model = compiler().load(examples().join("digits/digits.onnx")).unwrap();
        page(&model, &[images(3)], &UNMEASURED)
    });
    assert!(pages[0] == pages[1]);
    let found = data(&pages[0]);
    assert!(found["machine"].is_null() && found["parts"][0]["run_ms"].is_null());
    assert_eq!(found["parts"][0]["steps"]["ns"], json!([]));
}

#[test]
fn a_page_stands_for_itself() {
    let model = compiler().load(examples().join("digits/digits.onnx")).unwrap();
    let page = page(&model, &[images(3)], &ReportRequest { repeat: Some(1) });
    let addresses = page.matches("://").count() - page.matches("http://www.w3.org/2000/svg").count();
    assert_eq!(addresses, 0, "the page needs another file");
    for tag in ["src=", "@import", "url(data", "fetch("] {
        assert!(!page.contains(tag), "{tag}");
    }
    // Readable without the script: a row for every step, and every pass.
    let found = data(&page);
    let steps = found["parts"][0]["steps"]["kinds"].as_array().unwrap().len();
    let table = page.split("id=\"step-table\"").nth(1).unwrap().split("</table>").next().unwrap();
    assert_eq!(table.matches("<tr>").count(), steps + 1);
    for pass in ["infer", "decompose", "simplify", "fuse"] {
        assert!(page.contains(&format!("<span class=\"pass\">{pass}</span>")), "{pass}");
    }
    assert!(found["machine"]["memory"].as_f64().unwrap() > 0.0 && found["parts"][0]["run_ms"].as_f64().unwrap() > 0.0);
}

#[test]
fn every_node_is_in_a_kernel_or_has_none() {
    let compiler = compiler();
    let mut graph = blocks(2);
    graph.node.push(NodeProto { name: Some("/view".into()), ..node("Reshape", &["x", "shape"], &["viewed"]) });
    graph.node.push(NodeProto { name: Some("/fixed".into()), ..node("Exp", &["w"], &["fixed"]) });
    graph.node.push(NodeProto { name: Some("/use".into()), ..node("MatMul", &["viewed", "fixed"], &["used"]) });
    graph.output.push(untyped("used"));
    graph.initializer.push(i64s("shape", &[2], &[-1, 8]));
    let found = data(&page(&loaded(&compiler, graph), &[x()], &UNMEASURED));
    let (names, fates) = (names(&found), &found["nodes"]["fates"]);
    let fate = |name: &str| fates[names.iter().position(|n| n == name).unwrap()].as_u64().unwrap();
    assert_eq!([fate("/group.0/block.1/mlp/Tanh"), fate("/use"), fate("/fixed"), fate("x")], [0, 0, 1, 4]);
    assert_eq!(fate("/view"), 2, "a view of as many elements has no code");
    // Steps name the nodes that they compute; what follows a product is part of its step.
    let steps = found["parts"][0]["steps"]["nodes"].as_array().unwrap();
    let of = |name: &str| {
        let at = json!(names.iter().position(|n| n == name).unwrap());
        steps.iter().position(|nodes| nodes.as_array().unwrap().contains(&at))
    };
    assert_eq!(of("/group.0/block.1/mlp/MatMul"), of("/group.0/block.1/mlp/Tanh"));
    assert_ne!(of("/group.0/block.1/mlp/MatMul"), of("/use"));
}

#[test]
fn ten_thousand_nodes_take_two_megabytes_at_most() {
    let compiler = compiler();
    let page = page(&loaded(&compiler, blocks(1000)), &[x()], &UNMEASURED);
    assert!(page.len() <= 2_000_000, "{} bytes", page.len());
    assert_eq!(names(&data(&page)).len(), 10_002);
}

#[test]
fn what_is_not_supported_is_listed_with_every_node() {
    let mut graph = blocks(1);
    let foreign = |i: usize| NodeProto {
        name: Some(format!("/foreign/{i}")),
        domain: Some("com.example".into()),
        ..node("Mystery", &["x"], &[&format!("m{i}")])
    };
    graph.node.extend((0..9).map(foreign));
    graph.output.push(untyped("m8"));
    let mut model = model(graph);
    model.opset_import.push(opset("com.example", 1));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.onnx");
    fs::write(&path, encoded(&model)).unwrap();
    let compiler = compiler();
    let error = compiler.load(&path).err().unwrap();
    let report = ModelReport::of_refused(&compiler, &path, &error).unwrap();
    let page = report.html();
    let found = data(&page);
    assert_eq!(found["unsupported"][0]["nodes"].as_array().unwrap().len(), 9);
    for i in 0..9 {
        assert!(page.contains(&format!("<code>/foreign/{i}</code>")));
    }
    // The graph of the file is shown, with those nodes marked.
    let refused = found["nodes"]["fates"].as_array().unwrap().iter().filter(|fate| **fate == json!(6)).count();
    assert_eq!((refused, names(&found).len()), (9, 20));
    let other = tensorc::Error::Internal(String::new());
    assert!(ModelReport::of_refused(&compiler, &path, &other).is_none());
}

/// Shapes that depend on values, and branches, have pages, too.
#[test]
fn parts_and_control_flow_are_shown() {
    let compiler = compiler();
    let nodes = vec![
        node("NonZero", &["x"], &["found"]),
        node("Transpose", &["found"], &["rows"]),
        node("Cast", &["rows"], &["floats"]),
        node("ReduceSum", &["floats"], &["sum"]),
    ];
    let mut nodes = nodes;
    nodes[2] = with(nodes[2].clone(), vec![int("to", 1)]);
    let divided = graph(vec![value("x", DataType::Float, &[2, 8])], nodes, &["sum"]);
    let report = page(&loaded(&compiler, divided), &[x()], &ReportRequest { repeat: Some(1) });
    let found = data(&report);
    assert!(found["parts"].as_array().unwrap().len() > 1, "{}", found["parts"]);
    assert!(found["notes"][0].as_str().unwrap().contains("parts"));
    let branch_of = |op: &str| graph(vec![], vec![node(op, &["x"], &["z"])], &["z"]);
    let sides = vec![branch("then_branch", branch_of("Exp")), branch("else_branch", branch_of("Neg"))];
    let inputs = vec![value("x", DataType::Float, &[2, 8]), value("c", DataType::Bool, &[])];
    let chosen = graph(inputs, vec![with(node("If", &["c"], &["y"]), sides)], &["y"]);
    let yes = Tensor::from_bytes(tensorc::DType::Bool, &[], vec![1u8]).unwrap();
    let found = data(&page(&loaded(&compiler, chosen), &[x(), yes], &ReportRequest { repeat: Some(1) }));
    assert!(!found["parts"][0]["steps"]["kinds"].as_array().unwrap().is_empty());
}

/// Sums of rows, each behind a hyperbolic tangent; in a branch that the sum of all decides, if it is to be nested.
fn scanned(rows: i64, nested: bool) -> GraphProto {
    let named = |op: &str, name: &str, inputs: &[&str], out: &str| NodeProto {
        name: Some(name.into()),
        ..node(op, inputs, &[out])
    };
    let body_nodes =
        vec![named("Add", "/cell/Add", &["sum", "element"], "added"), named("Tanh", "/cell/Tanh", &["added"], "next")];
    let body = graph(vec![untyped("sum"), untyped("element")], body_nodes, &["next"]);
    let attributes = vec![int("num_scan_inputs", 1), branch("body", body)];
    let scan = with(named("Scan", "/cell/Scan", &["zero", "x"], "y"), attributes);
    let x = vec![value("x", DataType::Float, &[rows, 4])];
    let mut whole = match nested {
        false => graph(x, vec![scan], &["y"]),
        true => {
            let otherwise = graph(vec![], vec![named("Neg", "/other/Neg", &["zero"], "y2")], &["y2"]);
            let sides =
                vec![branch("then_branch", graph(vec![], vec![scan], &["y"])), branch("else_branch", otherwise)];
            let decide = vec![
                named("ReduceSum", "/decide/Sum", &["x"], "total"),
                named("Reshape", "/decide/Reshape", &["total", "scalar"], "flat"),
                named("Greater", "/decide/Greater", &["flat", "limit"], "c"),
                with(named("If", "/decide/If", &["c"], "z"), sides),
            ];
            graph(x, decide, &["z"])
        }
    };
    whole.initializer = vec![f32s("zero", &[4], &[0.0; 4]), i64s("scalar", &[0], &[]), f32s("limit", &[], &[0.5])];
    whole
}

#[test]
fn nodes_of_branches_and_loops_are_shown() {
    let rows = || Tensor::from_f32(&[600, 4], &[0.1; 2400]).unwrap();
    for nested in [false, true] {
        let found = data(&page(&loaded(&compiler(), scanned(600, nested)), &[rows()], &UNMEASURED));
        let names = names(&found);
        let at = |name: &str| names.iter().position(|n| n == name).unwrap_or_else(|| panic!("{name} of {names:?}"));
        let nodes = &found["nodes"];
        let body = |i: usize| nodes["within"][i].as_u64().unwrap();
        let flow = |of: u64| nodes["bodies"][of as usize - 1]["flow"].as_u64().unwrap() as usize;
        let (tanh, scan) = (at("/cell/Tanh"), at("/cell/Scan"));
        assert_eq!(flow(body(tanh)), scan);
        assert_eq!(nodes["bodies"][body(tanh) as usize - 1]["label"], "body");
        let text =
            |column: &str, i: usize| found["strings"][nodes[column][i].as_u64().unwrap() as usize].as_str().unwrap();
        // The loop reads what its body computes, and the body what the loop gives it.
        let reads = |i: usize| -> Vec<usize> {
            let distances = nodes["args"][i].as_array().unwrap();
            distances.iter().map(|distance| i - distance.as_u64().unwrap() as usize).collect()
        };
        assert!(reads(scan).contains(&tanh));
        let element = (0..names.len()).find(|i| text("ops", *i) == "row of this iteration").unwrap();
        assert!(reads(at("/cell/Add")).contains(&element) && reads(element) == [at("x")]);
        assert_eq!((text("types", element), text("types", tanh)), ("f32[4]", "f32[4]"));
        assert_eq!(nodes["fates"][tanh], json!(0), "a kernel computes it");
        let steps = found["parts"][0]["steps"]["nodes"].as_array().unwrap();
        let of = |i: usize| steps.iter().filter(|nodes| nodes.as_array().unwrap().contains(&json!(i))).count();
        assert_eq!((of(tanh), of(element), of(at("x"))), (1, 0, 0), "inputs are computed by nothing");
        if nested {
            let choice = at("/decide/If");
            assert_eq!((flow(body(scan)), flow(body(at("/other/Neg")))), (choice, choice));
            assert_ne!(body(scan), body(at("/other/Neg")));
        }
    }
}

/// Writes a page into a folder that is removed with the guard.
fn written(page: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("page.html");
    fs::write(&path, page).unwrap();
    (folder, path)
}

const BOXES: &str = "document.querySelectorAll('#canvas g.box').length";
const SELECTED: &str = "(document.querySelector('#canvas [aria-selected=\"true\"]') || {}).ariaLabel || ''";

#[test]
fn a_browser_shows_ten_thousand_nodes_and_is_moved_by_keys() {
    let Some(mut browser) = Browser::start() else { return };
    let compiler = compiler();
    let (_folder, path) = written(&page(&loaded(&compiler, blocks(1000)), &[x()], &UNMEASURED));
    browser.open(&path, "light");
    let ready: u64 = browser.value("document.documentElement.dataset.ready").as_str().unwrap().parse().unwrap();
    // Two seconds on a machine that does nothing else.
    assert!(ready < 6000, "usable after {ready} ms");
    let folded = browser.value(BOXES).as_u64().unwrap();
    assert!((2..200).contains(&folded), "{folded} boxes");
    browser.value("document.getElementById('canvas').focus()");
    browser.key("ArrowDown");
    browser.key("ArrowDown");
    let selected = browser.value(SELECTED);
    assert_ne!(selected, json!(""));
    let active = "document.getElementById('canvas').getAttribute('aria-activedescendant')";
    assert!(browser.value(active).as_str().unwrap().starts_with("box"));
    browser.key("Enter");
    let unfolded = browser.value(BOXES).as_u64().unwrap();
    assert!(unfolded > folded, "{folded}, then {unfolded} boxes");
    browser.key("Enter");
    assert_eq!(browser.value(BOXES).as_u64().unwrap(), folded);
    // Search unfolds what hides the node.
    browser.key("/");
    assert_eq!(browser.value("document.activeElement.id"), json!("search"));
    browser.text("block.777 tanh");
    browser.wait("document.querySelectorAll('#found [role=option]').length === 1");
    browser.key("Enter");
    assert!(
        browser
            .value("document.getElementById('details').textContent")
            .as_str()
            .unwrap()
            .contains("block.777/mlp/Tanh")
    );
    assert!(browser.value(SELECTED).as_str().unwrap().starts_with("tanh"), "{}", browser.value(SELECTED));
    browser.key("Escape");
    assert!(!browser.value(SELECTED).as_str().unwrap().starts_with("tanh"));
    // By kernel: the nodes of one kernel in one box.
    browser.value(
        "{ const s = document.getElementById('grouping'); s.value = 'kernel'; s.dispatchEvent(new Event('change')); }",
    );
    assert!(browser.value(BOXES).as_u64().unwrap() > 1);
}

#[test]
fn a_browser_goes_into_a_loop() {
    let Some(mut browser) = Browser::start() else { return };
    let rows = Tensor::from_f32(&[600, 4], &[0.1; 2400]).unwrap();
    let (_folder, path) = written(&page(&loaded(&compiler(), scanned(600, true)), &[rows], &UNMEASURED));
    browser.open(&path, "light");
    browser.value("document.getElementById('canvas').focus()");
    browser.key("/");
    browser.text("tanh");
    browser.wait("document.querySelectorAll('#found [role=option]').length === 1");
    browser.key("Enter");
    let details = browser.value("document.getElementById('details').textContent");
    assert!(details.as_str().unwrap().contains("body of /cell/Scan"), "{details}");
    let labels = browser.value("[...document.querySelectorAll('#canvas g')].map((g) => g.textContent).join(' ')");
    for label in ["If: then", "Scan: body"] {
        assert!(labels.as_str().unwrap().contains(label), "{label} of {labels}");
    }
}

#[test]
fn a_browser_draws_charts_in_light_and_dark() {
    let Some(mut browser) = Browser::start() else { return };
    let model = compiler().load(examples().join("digits/digits.onnx")).unwrap();
    let (_folder, path) = written(&page(&model, &[images(8)], &ReportRequest { repeat: Some(2) }));
    let mut colours = vec![];
    for theme in ["light", "dark"] {
        browser.open(&path, theme);
        assert_eq!(browser.value("document.querySelectorAll('.memory canvas').length"), json!(1));
        assert!(browser.value("document.querySelectorAll('#roofline circle').length").as_u64().unwrap() > 0);
        let rows = browser.value("document.querySelectorAll('#step-table tbody tr').length");
        assert_eq!(
            rows,
            browser.value("JSON.parse(document.getElementById('data').textContent).parts[0].steps.kinds.length")
        );
        // Rows lead to the graph.
        browser.value("document.querySelector('#step-table button.link').click()");
        assert_ne!(browser.value(SELECTED), json!(""));
        colours.push(browser.value("getComputedStyle(document.body).backgroundColor"));
    }
    assert_ne!(colours[0], colours[1]);
}

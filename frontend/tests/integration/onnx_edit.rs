//! Models that are taken apart, changed and written again.

use bytes::{BufMut, Bytes, BytesMut};
use prost::Message;
use tensorc_frontend::onnx::OnnxModel;
use tensorc_frontend::onnx::edit::{EditedModel, EditedNode, EditedTensor, RawMessage};
use tensorc_frontend::onnx::proto::*;

use crate::support::*;

fn sample() -> ModelProto {
    let nodes = vec![
        NodeProto { name: Some("product".into()), ..node("MatMul", &["x", "w"], &["p"]) },
        with(node("Softmax", &["p"], &["y"]), vec![int("axis", 1)]),
    ];
    let mut graph = graph(vec![value("x", DataType::Float, &[2, 3])], nodes, &["y"]);
    graph.initializer = vec![f32s("w", &[3, 4], &[0.5; 12])];
    graph.value_info = vec![value("p", DataType::Float, &[2, 4])];
    let mut model = model(graph);
    model.producer_name = Some("test".into());
    model.metadata_props = vec![entry("author", "nobody")];
    model
}

/// Adds a field that holds a text to a message.
fn with_text(message: &[u8], number: u8, text: &str) -> Bytes {
    let mut bytes = BytesMut::from(message);
    bytes.put_u8(number << 3 | 2);
    bytes.put_u8(text.len() as u8);
    bytes.put_slice(text.as_bytes());
    bytes.freeze()
}

/// The sample with documentation, which nothing here decodes: of the model, the graph and the first node.
fn documented() -> Bytes {
    let model = sample();
    let graph = model.graph.clone().unwrap();
    let mut raw = RawMessage::default();
    let node = with_text(&graph.node[0].encode_to_vec(), 6, "about the node");
    raw.push(1, node);
    raw.push(1, graph.node[1].encode_to_vec().into());
    let rest = GraphProto { node: vec![], ..graph };
    let rest = with_text(&rest.encode_to_vec(), 10, "about the graph");
    let graph = [&raw.encode()[..], &rest[..]].concat();
    let mut whole =
        RawMessage::decode(&with_text(&ModelProto { graph: None, ..model }.encode_to_vec(), 6, "about the model"))
            .unwrap();
    whole.push(7, graph.into());
    whole.encode()
}

fn contains(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

#[test]
fn models_that_are_not_changed_have_the_same_bytes() {
    let plain: Bytes = EditedModel::decode(&encoded(&sample())).unwrap().encode();
    assert_eq!(ModelProto::decode(plain.clone()).unwrap(), sample());
    assert_eq!(EditedModel::decode(&plain).unwrap().encode(), plain);
    let documented = EditedModel::decode(&documented()).unwrap().encode();
    assert_eq!(ModelProto::decode(documented.clone()).unwrap(), sample());
    for text in ["about the node", "about the graph", "about the model"] {
        assert!(contains(&documented, text), "{text}");
    }
}

#[test]
fn what_is_changed_keeps_the_rest() {
    let mut model = EditedModel::decode(&documented()).unwrap();
    model.nodes[0].set_output(0, "q");
    model.nodes[0].set_input(2, "b");
    model.nodes[1].set_input(0, "q");
    model.nodes.push(EditedNode::new(node("Relu", &["y"], &["z"])));
    model.initializers.push(EditedTensor::new(f32s("b", &[4], &[1.0; 4])));
    model.add_output("z");
    model.ir_version = 9;
    model.set_opset("ai.onnx", 18);
    model.set_opset("com.microsoft", 1);
    assert_eq!((model.opset(""), model.opset("f"), model.opset("other")), (Some(18), Some(1), None));
    assert!(["x", "q", "z", "product"].iter().all(|name| model.names().contains(*name)));
    let bytes = model.encode();
    let mut expected = sample();
    expected.ir_version = Some(9);
    expected.opset_import = vec![opset("ai.onnx", 18), opset("f", 1), opset("com.microsoft", 1)];
    let graph = expected.graph.as_mut().unwrap();
    graph.node[0].output = strings(&["q"]);
    graph.node[0].input = strings(&["x", "w", "b"]);
    graph.node[1].input = strings(&["q"]);
    graph.node.push(node("Relu", &["y"], &["z"]));
    graph.initializer.push(f32s("b", &[4], &[1.0; 4]));
    graph.output.push(untyped("z"));
    assert_eq!(ModelProto::decode(bytes.clone()).unwrap(), expected);
    for text in ["about the node", "about the graph", "about the model"] {
        assert!(contains(&bytes, text), "{text}");
    }
}

#[test]
fn data_that_is_moved_out_is_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let mut model = EditedModel::decode(&encoded(&sample())).unwrap();
    model.initializers.push(EditedTensor::new(f32s("v", &[2], &[3.0, 4.0])));
    model.initializers.push(EditedTensor::new(f32s("u", &[12], &[7.0; 12])));
    let mut data = vec![];
    model.move_data(16, "model.data", &mut data).unwrap();
    assert_eq!(data.len(), 4096 + 48);
    std::fs::write(folder.path().join("model.data"), &data).unwrap();
    let path = folder.path().join("model.onnx");
    std::fs::write(&path, model.encode()).unwrap();
    let read = OnnxModel::open(&path).unwrap();
    let external: Vec<bool> = read.graph.initializer.iter().map(|t| !t.external_data.is_empty()).collect();
    assert_eq!(external, [true, false, true]);
    let imported = import_file(&path, Default::default());
    assert!(imported.is_ok(), "{:?}", imported.err());
}

#[test]
fn bytes_that_are_no_model_are_refused() {
    for bytes in [&b"\x0b"[..], b"\x3a\x05\x01", b"", b"\x3a\x00\x3a\x00"] {
        assert!(EditedModel::decode(&Bytes::from_static(bytes)).is_err(), "{bytes:?}");
    }
}

//! The C header of a compiled model.

use std::fmt::Write;

use tensorc_runtime::artifact::{Manifest, TensorInfo};

use crate::texts::ModelTexts;

/// Declarations that every header has, once in a program.
const COMMON: &str = include_str!("tensorc.h.in");

/// Declarations of every header of a model for a GPU.
const GPU: &str = include_str!("tensorc_gpu.h.in");

/// The text of the header. A model with texts has them in a list.
pub fn write(manifest: &Manifest, texts: Option<&ModelTexts>) -> String {
    let name = &manifest.name;
    let upper = name.to_uppercase();
    let target = match &manifest.gpu {
        Some(gpu) => format!("{} and GPUs, {}", manifest.target, gpu.architecture),
        None => manifest.target.clone(),
    };
    let common = format!("{COMMON}{}", if manifest.gpu.is_some() { GPU } else { "" });
    let mut h = format!("/* {name}: compiled by tensorc {} for {target}. */\n", manifest.compiler);
    let _ = write!(h, "#ifndef {upper}_H\n#define {upper}_H\n\n{common}\n");
    signature(&mut h, manifest, texts);
    if let Some(texts) = texts.filter(|texts| !texts.list().is_empty()) {
        text_list(&mut h, &manifest.name, texts);
    }
    let weights = match (manifest.weights.bytes, manifest.weights.embedded) {
        (0, _) => "The model has no weights: give null.".to_owned(),
        (bytes, true) => format!("The weights, {bytes} bytes, are inside the object: give null."),
        (bytes, false) => format!(
            "The weights, {bytes} bytes, are in a file beside the object: open it once and give it to every context."
        ),
    };
    let _ = write!(
        h,
        r#"#define {upper}_INPUTS {inputs}
#define {upper}_OUTPUTS {outputs}

#ifdef __cplusplus
extern "C" {{
#endif

/* The memory of one run at a time. Threads that run the model at the same time have a context each. */
typedef struct {name}_context {name}_context;

/* {weights}
 * Maps a file of weights; flags: 0, or TC_TRUSTED to skip the check of its contents. */
tc_status {name}_weights_open(const char *path, uint32_t flags, tc_weights *out);
/* Takes a whole file of weights that lies in memory, at a multiple of 64 bytes. */
tc_status {name}_weights_view(const void *file, uint64_t bytes, uint32_t flags, tc_weights *out);
void {name}_weights_close(tc_weights *weights);

{contexts}/* Fills type, shape and bytes of the outputs for the shapes of the inputs; no data is needed or touched. The extents
 * that `dims` points to are valid until the next call with the context.{bounds} */
tc_status {name}_describe({name}_context *context, const tc_tensor *inputs, tc_tensor *outputs);
/* Runs the model on {upper}_INPUTS inputs into {upper}_OUTPUTS outputs, which overlap nothing. {results}{found} */
tc_status {name}_run({name}_context *context, const tc_tensor *inputs, tc_tensor *outputs);
/* What went wrong in the last call with the context; valid until the next. */
const char *{name}_error(const {name}_context *context);
void {name}_free({name}_context *context);

#ifdef __cplusplus
}}
#endif

#endif
"#,
        inputs = manifest.inputs.len(),
        outputs = manifest.outputs.len(),
        contexts = contexts(manifest),
        bounds = match manifest.found.is_empty() {
            true => "",
            false => " Where extents depend on values, they and `bytes`\n * are the most that there may be.",
        },
        found = match manifest.found.is_empty() {
            true => "",
            false => {
                " Behind it, `rank` and\n * `dims` of the outputs are those that were found, valid until the next call with \
                 the context; `bytes` is left as it was.\n * TC_VALUE: a number that decides shapes is none that the model \
                 was compiled for; TC_BUFFER: an output has less memory than\n * what was found takes."
            }
        },
        results = match manifest.gpu {
            None => "Results have the\n * same bits for every number of workers.",
            Some(_) => "It returns when\n * the GPU is done with them.",
        },
    );
    h
}

/// The functions that make contexts.
fn contexts(manifest: &Manifest) -> String {
    let (name, arena) = (&manifest.name, manifest.arena_bytes());
    let (one, more) = (manifest.run_bytes(1), manifest.scratch_bytes());
    if manifest.gpu.is_none() {
        let for_shapes = match manifest.found.is_empty() {
            true => "Bytes that it takes for inputs of these shapes; no data is needed.",
            false => "The same, if the model was compiled for inputs of these shapes; no data is needed.",
        };
        return format!(
            r#"/* Bytes of memory that a context takes for any shapes: at most {one} for intermediate tensors and the working memory
 * of one worker, at most {more} more for each further worker, and its own record. */
uint64_t {name}_memory_bytes(uint32_t workers);
/* {for_shapes} 0: the model was not compiled for them. */
uint64_t {name}_memory_for(const tc_tensor *inputs, uint32_t workers);
/* Makes a context in `memory`, at a multiple of 64 bytes, or in memory of its own if that is null. With the
 * caller's memory nothing is allocated, here or later. `parallel` may be null: one thread. `weights` and
 * `parallel` must outlive the context. */
tc_status {name}_init({name}_context **out, void *memory, uint64_t bytes, const tc_weights *weights,
                      const tc_parallel *parallel);
"#
        );
    }
    format!(
        r#"/* Bytes of the host's memory that a context takes, whatever `workers` is. On the GPU it takes {arena} bytes for
 * intermediate tensors and room for a copy of every input and output. */
uint64_t {name}_memory_bytes(uint32_t workers);
/* The same for inputs of these shapes. 0: the model was not compiled for them. */
uint64_t {name}_memory_for(const tc_tensor *inputs, uint32_t workers);
/* Makes a context on a GPU, in `memory` of the host, at a multiple of 64 bytes, or in memory of its own if that is
 * null. `gpu` may be null: the first GPU with the system's driver; after an error, its message says why. Code and
 * weights are brought to the GPU with the first context and shared by all that are given the same `weights`, which
 * must outlive them. */
tc_status {name}_init_on({name}_context **out, tc_gpu *gpu, void *memory, uint64_t bytes, const tc_weights *weights);
/* The same on the first GPU. Nothing is shared among threads of the host: `parallel` is not used. */
tc_status {name}_init({name}_context **out, void *memory, uint64_t bytes, const tc_weights *weights,
                      const tc_parallel *parallel);
"#
    )
}

/// Inputs, outputs and dynamic dimensions as a comment.
fn signature(h: &mut String, manifest: &Manifest, texts: Option<&ModelTexts>) {
    let line = |t: &TensorInfo| format!("{} {}[{}]", t.name.replace("*/", "* /"), t.dtype, t.dims.join(", "));
    let is_text = |side: &str, name: &str| {
        texts.is_some_and(|texts| if side == "inputs" { texts.is_input(name) } else { texts.is_output(name) })
    };
    let _ = writeln!(h, "/* Tensors are row-major.");
    for (side, tensors) in [("inputs", &manifest.inputs), ("outputs", &manifest.outputs)] {
        for (i, tensor) in tensors.iter().enumerate() {
            let texts = if is_text(side, &tensor.name) { ", numbers of texts" } else { "" };
            let _ = writeln!(h, " *   {side}[{i}]: {}{texts}", line(tensor));
        }
    }
    for (name, min, max, step) in manifest.ranges() {
        let by = if step == 1 { String::new() } else { format!(", in steps of {step}") };
        let _ = writeln!(h, " *   {name} is {min} to {max}{by}");
    }
    for (name, min, max) in &manifest.found {
        let _ = writeln!(h, " *   {} is {min} to {max}, known in a run", name.replace("*/", "* /"));
    }
    let _ = writeln!(h, " */");
}

/// The texts by their numbers.
fn text_list(h: &mut String, name: &str, texts: &ModelTexts) {
    let (upper, list) = (name.to_uppercase(), texts.list());
    let _ = write!(
        h,
        "/* Texts are numbers: positions in this list. A text of an input that is not in it is any other number, equal texts the\n \
         * same. */\n#define {upper}_TEXTS {}\n",
        list.len()
    );
    let _ = writeln!(h, "static const char *const {name}_texts[{upper}_TEXTS] = {{");
    for text in list {
        let _ = writeln!(h, "    \"{}\",", in_c(text));
    }
    let _ = writeln!(h, "}};");
}

/// A text between the quotes of C.
fn in_c(text: &str) -> String {
    let one = |byte: u8| match byte {
        b'"' | b'\\' => format!("\\{}", char::from(byte)),
        // Trigraphs begin with two.
        b'?' => "\\?".to_owned(),
        b' '..=b'~' => char::from(byte).to_string(),
        _ => format!("\\{byte:03o}"),
    };
    text.bytes().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_between_quotes() {
        assert_eq!(in_c("a\"b\\c?\n\u{e9}1"), "a\\\"b\\\\c\\?\\012\\303\\2511");
    }
}

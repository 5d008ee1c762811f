//! The C header of a compiled model.

use std::fmt::Write;

use tensorc_runtime::artifact::{Manifest, TensorInfo};

/// Declarations that every header has, once in a program.
const COMMON: &str = include_str!("tensorc.h.in");

/// The text of the header.
pub fn write(manifest: &Manifest) -> String {
    let name = &manifest.name;
    let upper = name.to_uppercase();
    let mut h = format!("/* {name}: compiled by tensorc {} for {}. */\n", manifest.compiler, manifest.target);
    let _ = write!(h, "#ifndef {upper}_H\n#define {upper}_H\n\n{COMMON}\n");
    signature(&mut h, manifest);
    let weights = match (manifest.weights.bytes, manifest.weights.embedded) {
        (0, _) => "The model has no weights: give null.".to_owned(),
        (bytes, true) => format!("The weights, {bytes} bytes, are inside the object: give null."),
        (bytes, false) => format!(
            "The weights, {bytes} bytes, are in a file beside the object: open it once and give it to every context."
        ),
    };
    let arena = manifest.arena_bytes();
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

/* Bytes of memory that a context takes; intermediate tensors alone are {arena}. */
uint64_t {name}_memory_bytes(uint32_t workers);
/* Makes a context in `memory`, at a multiple of 64 bytes, or in memory of its own if that is null. With the
 * caller's memory nothing is allocated, here or later. `parallel` may be null: one thread. `weights` and
 * `parallel` must outlive the context. */
tc_status {name}_init({name}_context **out, void *memory, uint64_t bytes, const tc_weights *weights,
                      const tc_parallel *parallel);
/* Fills type, shape and bytes of the outputs for the shapes of the inputs; no data is needed or touched. */
tc_status {name}_describe({name}_context *context, const tc_tensor *inputs, tc_tensor *outputs);
/* Runs the model on {upper}_INPUTS inputs into {upper}_OUTPUTS outputs, which overlap nothing. Results have the
 * same bits for every number of workers. */
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
    );
    h
}

/// Inputs, outputs and dynamic dimensions as a comment.
fn signature(h: &mut String, manifest: &Manifest) {
    let line = |t: &TensorInfo| format!("{} {}[{}]", t.name.replace("*/", "* /"), t.dtype, t.dims.join(", "));
    let _ = writeln!(h, "/* Tensors are row-major.");
    for (side, tensors) in [("inputs", &manifest.inputs), ("outputs", &manifest.outputs)] {
        for (i, tensor) in tensors.iter().enumerate() {
            let _ = writeln!(h, " *   {side}[{i}]: {}", line(tensor));
        }
    }
    for (name, min, max) in &manifest.dims {
        let _ = writeln!(h, " *   {name} is {min} to {max}");
    }
    let _ = writeln!(h, " */");
}

//! A line on the terminal that says what a long command is doing.

use std::io::IsTerminal;
use std::sync::OnceLock;
use std::time::Duration;

use indicatif::ProgressBar;

static BAR: OnceLock<ProgressBar> = OnceLock::new();

/// Shows the phase of compilation. Nothing appears unless standard error is a terminal and the
/// work takes over a second.
pub fn phase(name: &str) {
    if !std::io::stderr().is_terminal() {
        return;
    }
    let bar = BAR.get_or_init(|| {
        let bar = ProgressBar::new_spinner();
        bar.enable_steady_tick(Duration::from_millis(1000));
        bar
    });
    bar.set_message(name.to_owned());
}

/// Removes the line.
pub fn clear() {
    if let Some(bar) = BAR.get() {
        bar.finish_and_clear();
    }
}

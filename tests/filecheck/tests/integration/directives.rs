//! Every directive, matching and not matching, and what the messages say.

use tensorc_filecheck::check::{CheckFailure, PatternFile, check_text};

fn check(patterns: &str, input: &str) -> Result<(), CheckFailure> {
    let file = PatternFile { name: "t.tc".to_owned(), text: patterns.to_owned() };
    check_text(&file, input, &["CHECK"])
}

#[track_caller]
fn passes(patterns: &str, input: &str) {
    if let Err(failure) = check(patterns, input) {
        panic!("{failure}");
    }
}

/// The failing directives' lines with their messages.
#[track_caller]
fn fails(patterns: &str, input: &str) -> Vec<(usize, String)> {
    match check(patterns, input) {
        Err(CheckFailure::Mismatches(found)) => found.into_iter().map(|m| (m.line, m.message)).collect(),
        other => panic!("{other:?} instead of a mismatch"),
    }
}

#[track_caller]
fn fails_with(patterns: &str, input: &str, line: usize, message: &str) {
    assert_eq!(fails(patterns, input), [(line, message.to_owned())]);
}

#[test]
fn check_keeps_the_order() {
    passes("CHECK: one\nCHECK: two", "one two");
    passes("CHECK: one\nCHECK: two", "x\none\n\ny two\n");
    fails_with("CHECK: one\nCHECK: two", "two one", 2, "no match");
    fails_with("CHECK: aa\nCHECK: aa", "aaa", 2, "no match");
}

#[test]
fn text_matches_itself_within_words_and_over_any_white_space() {
    passes("CHECK: ne", "oney");
    passes("CHECK: a.b $x (c)", "a.b $x (c)");
    fails_with("CHECK: a.b", "axb", 1, "no match");
    passes("CHECK: a  b", "a\t b");
    fails_with("CHECK: a b", "ab", 1, "no match");
    passes("CHECK: größe{{$}}", "größe\r\n");
}

#[test]
fn regexes() {
    passes("CHECK: x{{[0-9]+|y}}z", "x12z");
    passes("CHECK: x{{[0-9]+|y}}z", "xyz");
    fails_with("CHECK: x{{[0-9]+|y}}z", "xz", 1, "no match");
    passes("CHECK: {{^}}b{{$}}", "ab\nb\n");
    fails_with("CHECK: {{^b}}", "ab", 1, "no match");
    passes("CHECK: {{a{2}}}", "aa");
    fails_with("CHECK: a{{[^x]*}}c", "a\nb\nc", 1, "no match");
}

#[test]
fn next_is_the_line_after() {
    passes("CHECK: a\nCHECK-NEXT: b\nCHECK-NEXT: c", "a\nxb\nc");
    fails_with("CHECK: a\nCHECK-NEXT: b", "a\n\nb", 2, "no match on the next line");
    fails_with("CHECK: a\nCHECK-NEXT: b", "a b", 2, "there is no next line");
    fails_with("CHECK: a\nCHECK-NEXT: b", "a b\nc", 2, "no match on the next line");
}

#[test]
fn same_is_the_rest_of_the_line() {
    passes("CHECK: a\nCHECK-SAME: b\nCHECK-SAME: {{$}}", "a b");
    fails_with("CHECK: b\nCHECK-SAME: a", "a b", 2, "no match on the rest of the line");
    fails_with("CHECK: a\nCHECK-SAME: b", "a\nb", 2, "no match on the rest of the line");
    fails_with("CHECK: a\nCHECK-SAME: {{^$}}", "a b", 2, "no match on the rest of the line");
}

#[test]
fn not_holds_between_the_matches_around_it() {
    passes("CHECK: a\nCHECK-NOT: x\nCHECK: b", "x a y b x");
    fails_with("CHECK: a\nCHECK-NOT: x\nCHECK: b", "a\nx\nb", 2, "matches input line 2");
    fails_with("CHECK: a\nCHECK-NOT: x\nCHECK: b", "a x b", 2, "matches input line 1");
    passes("CHECK-NOT: x\nCHECK: a", "a\nx");
    fails_with("CHECK-NOT: x\nCHECK: a", "x\na", 1, "matches input line 1");
    fails_with("CHECK: a\nCHECK-NOT: x", "a\nb\nx", 2, "matches input line 3");
    passes("CHECK: a\nCHECK-NOT: x\nCHECK-NOT: y\nCHECK: b", "a z b");
    fails_with("CHECK: a\nCHECK-NOT: x\nCHECK-NOT: y\nCHECK: b", "a y b", 3, "matches input line 1");
    passes("CHECK-NOT: x", "a");
    passes("CHECK: a\nCHECK-NOT: {{^$}}\nCHECK: b", "a\nb");
    fails_with("CHECK: a\nCHECK-NOT: {{^$}}\nCHECK: b", "a\n\nb", 2, "matches input line 2");
}

#[test]
fn not_uses_captured_text() {
    let patterns = "CHECK: def [[X:%[0-9]+]]\nCHECK-NOT: use [[X]]\nCHECK: end";
    passes(patterns, "def %1\nuse %2\nend");
    fails_with(patterns, "def %1\nuse %1\nend", 2, "matches input line 2");
}

#[test]
fn dag_takes_any_order_within_its_group() {
    let patterns = "CHECK: begin\nCHECK-DAG: a\nCHECK-DAG: b\nCHECK: end";
    passes(patterns, "begin\nb\na\nend");
    passes(patterns, "begin\na b\nend");
    fails_with(patterns, "begin\nb\nend\na", 4, "no match");
    fails_with(patterns, "a\nbegin\nb\nend", 2, "no match");
}

#[test]
fn dag_matches_do_not_overlap() {
    passes("CHECK-DAG: add\nCHECK-DAG: add", "add\nadd");
    let message = "no match apart from those of its group";
    fails_with("CHECK-DAG: add\nCHECK-DAG: add", "add", 2, message);
    fails_with("CHECK-DAG: add f\nCHECK-DAG: f{{.*}}", "add f", 2, message);
}

#[test]
fn dag_uses_follow_definitions() {
    let patterns = "CHECK-DAG: [[A:%[0-9]]] = load\nCHECK-DAG: [[B:%[0-9]]] = neg\nCHECK-DAG: add [[A]], [[B]]";
    passes(patterns, "%1 = neg\n%2 = load\nadd %2, %1");
    fails_with(patterns, "add %2, %1\n%1 = neg\n%2 = load", 3, "no match apart from those of its group");
    fails_with(patterns, "%1 = neg\n%2 = load\nadd %1, %2", 3, "no match apart from those of its group");
}

#[test]
fn not_divides_dag_groups() {
    let patterns = "CHECK-DAG: a\nCHECK-DAG: b\nCHECK-NOT: x\nCHECK-DAG: c\nCHECK-DAG: d";
    passes(patterns, "x\nb\na\nd\nc");
    passes(patterns, "b x a d c");
    fails_with(patterns, "b\na\nx\nd\nc", 3, "matches input line 3");
    fails_with(patterns, "a\nc\nb\nd", 4, "no match");
}

#[test]
fn next_after_a_dag_group_follows_its_last_match() {
    passes("CHECK-DAG: a\nCHECK-DAG: b\nCHECK-NEXT: c", "b\na\nc");
    fails_with("CHECK-DAG: a\nCHECK-DAG: b\nCHECK-NEXT: c", "b\na\nx\nc", 3, "no match on the next line");
}

#[test]
fn labels_isolate_their_parts() {
    let patterns = "CHECK-LABEL: func f\nCHECK: add\nCHECK-LABEL: func g\nCHECK: mul\nCHECK-NEXT: ret";
    passes(patterns, "func f\nadd\nfunc g\nmul\nret");
    fails_with(patterns, "func f\nsub\nfunc g\nadd\nmul\nret", 2, "no match");
    fails_with(patterns, "func f\nadd\nmul\n", 3, "no match");
    let both = fails(patterns, "func f\nsub\nfunc g\nmul\n\nret");
    assert_eq!(both, [(2, "no match".to_owned()), (5, "no match on the next line".to_owned())]);
}

#[test]
fn labels_end_the_range_of_a_not() {
    let patterns = "CHECK-LABEL: f\nCHECK-NOT: x\nCHECK-LABEL: g\nCHECK: x";
    passes(patterns, "f\ng\nx");
    fails_with(patterns, "f\nx\ng\nx", 2, "matches input line 2");
    fails_with("CHECK-NOT: x\nCHECK-LABEL: f", "x\nf", 1, "matches input line 1");
    fails_with("CHECK-LABEL: f\nCHECK: a\nCHECK-NEXT: b\nCHECK-LABEL: g", "f\na\ng b", 3, "no match on the next line");
}

#[test]
fn captures_cross_lines_and_labels() {
    let patterns = "CHECK: [[X:%[a-z]+]] = load\nCHECK-LABEL: g\nCHECK: store [[X]]";
    passes(patterns, "%a = load\ng\nstore %a");
    fails_with(patterns, "%a = load\ng\nstore %b", 3, "no match");
    passes("CHECK: [[X:.+]]!\nCHECK-NEXT: [[X]]{{$}}", "a.c!\na.c\n");
    fails_with("CHECK: [[X:.+]]!\nCHECK-NEXT: [[X]]", "a.c!\nabc\n", 2, "no match on the next line");
    passes("CHECK: v[[X:[0-9]]] \nCHECK: w[[X:[0-9]]]\nCHECK: x[[X]]", "v1\nw2\nx2");
    fails_with("CHECK: x[[X]]", "x", 1, "[[X]] is not defined before");
}

#[test]
fn undefined_variables_after_a_failed_part_are_not_reported() {
    let patterns = "CHECK-LABEL: f\nCHECK: [[X:a]]\nCHECK-LABEL: g\nCHECK: [[X]]";
    fails_with(patterns, "f\nb\ng\na", 2, "no match");
}

#[test]
fn empty_is_an_empty_next_line() {
    passes("CHECK: a\nCHECK-EMPTY:\nCHECK-NEXT: b", "a\n\nb");
    passes("CHECK: a\nCHECK-EMPTY:\nCHECK-EMPTY:\nCHECK-NEXT: b", "a\n\n\nb");
    fails_with("CHECK: a\nCHECK-EMPTY:", "a\nb\n", 2, "the next line is not empty");
    fails_with("CHECK: a\nCHECK-EMPTY:", "a\n", 2, "there is no next line");
    assert!(!check("CHECK: a\nCHECK-EMPTY:", "a\nb").unwrap_err().to_string().contains("is not where"));
    fails_with("CHECK: a\nCHECK-EMPTY:", "a\n x\n", 2, "the next line is not empty");
}

#[test]
fn count_is_that_many_matches() {
    passes("CHECK-COUNT-3: add\nCHECK-NOT: add", "add add\nadd");
    fails_with("CHECK-COUNT-3: add", "add\nadd", 1, "2 of 3 matches found");
    fails_with("CHECK-COUNT-2: add\nCHECK-NOT: add", "add\nadd\nadd", 2, "matches input line 3");
    fails_with("CHECK: b\nCHECK-COUNT-1: a", "a\nb", 2, "0 of 1 matches found");
}

#[test]
fn prefixes_choose_the_directives() {
    let file = PatternFile { name: "t.tc".to_owned(), text: "CPU: a\nGPU: b\nGPU-NEXT: c".to_owned() };
    assert!(check_text(&file, "a", &["CPU"]).is_ok());
    assert!(check_text(&file, "b\nc", &["GPU"]).is_ok());
    assert!(check_text(&file, "b\na", &["GPU"]).is_err());
    assert!(check_text(&file, "a\nb\nc", &["CPU", "GPU"]).is_ok());
    assert!(check_text(&file, "b\nc\na", &["CPU", "GPU"]).is_err());
    let missing = check_text(&file, "a", &["CPU", "TPU"]).unwrap_err();
    assert_eq!(missing.to_string(), "t.tc: no directive with the prefix 'TPU'");
    assert_eq!(check_text(&file, "a", &[]).unwrap_err().to_string(), "t.tc: no directive with the prefix 'CHECK'");
}

#[test]
fn bad_directives_are_named_with_their_line() {
    let message = |patterns: &str| check(patterns, "a").unwrap_err().to_string();
    assert_eq!(message("CHECK: a\nCHECK: {{b"), "t.tc:2: '{{' without '}}'");
    assert_eq!(message("CHECK-SAME: a"), "t.tc:1: needs a directive that matches before it");
    assert!(message("\nCHECK: {{b(}}").starts_with("t.tc:2: "));
}

#[test]
fn a_mismatch_is_explained() {
    let patterns = "// CHECK: [[X:%[0-9]+]] = load\n// CHECK-NEXT: = add [[X]]\n";
    let failure = check(patterns, "%0 = const\n%1 = load\n%2 = mul %1\n%3 = add %1\n").unwrap_err();
    let expected = "\
t.tc:2: CHECK-NEXT: no match on the next line
  pattern: = add [[X]]
  with X = '%1'
       2 | %1 = load    <- matched by line 1
  >    3 | %2 = mul %1
    input line 4 matches, but is not where a match may be
";
    assert_eq!(failure.to_string(), expected);
}

#[test]
fn a_mismatch_names_the_nearest_line() {
    let failure = check("CHECK: relu(%x)", "%x = input\n%y = gelu(%x)\n").unwrap_err();
    assert!(failure.to_string().contains("nearest is input line 2: %y = gelu(%x)"), "{failure}");
    let failure = check("CHECK: conv", "%x = input\n").unwrap_err();
    assert!(!failure.to_string().contains("nearest"), "{failure}");
    assert!(check("CHECK: a", "").unwrap_err().to_string().contains("the input is empty"));
}

#[test]
fn a_long_search_is_shortened() {
    let failure = check("CHECK: zzz", &"line\n".repeat(40)).unwrap_err().to_string();
    assert!(failure.contains("12 | line") && !failure.contains("13 | line"), "{failure}");
    assert!(failure.contains("... and 28 more lines searched"), "{failure}");
}

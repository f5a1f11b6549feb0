use proptest::prelude::*;
use serde_json::json;

use super::*;

fn validator(schema: Value) -> Validator {
    Validator::new(&closed(schema).unwrap()).unwrap()
}

fn template(command: &[&str], schema: &Value) -> Result<Template, Vec<BadTemplate>> {
    let command: Vec<String> = command.iter().map(|text| (*text).to_owned()).collect();
    Template::new(&command, &closed(schema.clone()).unwrap())
}

fn refused(command: &[&str], schema: Value) -> String {
    let errors = template(command, &schema).expect_err("must be refused");
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

#[test]
fn nothing_counts_as_an_object_without_members() {
    let validator = validator(json!({}));
    assert_eq!(validator.validate(Value::Null).unwrap(), json!({}));
    assert_eq!(validator.validate(json!({})).unwrap(), json!({}));
    assert!(validator.validate(json!([])).is_err());
}

#[test]
fn defaults_fill_what_is_absent_only() {
    let validator = validator(json!({"properties": {
        "a": {"default": 1}, "b": {"type": ["integer", "null"], "default": 2}
    }}));
    assert_eq!(validator.validate(json!({"b": null})).unwrap(), json!({"a": 1, "b": null}));
}

#[test]
fn a_problem_is_told_with_its_place() {
    let validator = validator(json!({"properties": {"steps": {"type": "integer"}}}));
    let fault = validator.validate(json!({"steps": "many"})).unwrap_err();
    assert_eq!(fault.code, Code::InvalidParams);
    assert_eq!(fault.stage, Some(Stage::Validate));
    assert_eq!(fault.message, r#"invalid input: /steps: "many" is not of type "integer""#);
    assert_eq!(fault.problems[0].pointer, "/steps");
    let fault = validator.validate(json!({"step": 1})).unwrap_err();
    assert!(fault.message.contains("'step' was unexpected"), "{}", fault.message);
}

#[test]
fn no_more_than_five_problems_are_told() {
    let schema = json!({"additionalProperties": {"type": "integer"}});
    let input: Map<String, Value> = (0..1_000).map(|n| (n.to_string(), json!("x"))).collect();
    let fault = validator(schema).validate(Value::Object(input)).unwrap_err();
    assert_eq!(fault.problems.len(), PROBLEMS_MAX);
    assert_eq!(fault.message.matches("; ").count(), PROBLEMS_MAX - 1);
}

#[test]
fn a_long_value_is_not_quoted() {
    let validator = validator(json!({"properties": {"n": {"type": "integer"}}}));
    let fault = validator.validate(json!({"n": "x".repeat(100_000)})).unwrap_err();
    assert!(fault.message.len() < 1_000);
    assert!(fault.message.contains("not of type"), "{}", fault.message);
}

#[test]
fn an_input_with_a_sensitive_member_is_never_quoted() {
    for mark in [
        json!({"type": "string", "format": "password", "maxLength": 3}),
        json!({"type": "integer", "writeOnly": true}),
        json!({"type": "integer", "x-reeve-sensitive": true}),
        json!({"anyOf": [{"type": "integer", "writeOnly": true}, {"type": "boolean"}]}),
        json!({"$ref": "#/$defs/secret"}),
    ] {
        let validator = validator(json!({
            "properties": {"token": mark, "n": {"type": "integer"}},
            "$defs": {"secret": {"type": "integer", "writeOnly": true}},
        }));
        let fault = validator.validate(json!({"token": "hunter2", "n": "hunter2"})).unwrap_err();
        assert!(!fault.message.contains("hunter2"), "{}", fault.message);
        assert!(fault.problems.iter().all(|problem| !problem.message.contains("hunter2")));
    }
}

#[test]
fn a_reference_out_of_the_schema_is_refused() {
    for target in ["https://example.com/s.json", "file:///etc/passwd", "other.json", "//x/y"] {
        let schema = json!({"type": "object", "properties": {"a": {"$ref": target}}});
        let error = Validator::new(&schema).unwrap_err().to_string();
        assert!(error.contains("leaves the schema"), "{error}");
    }
    let schema = json!({"type": "object", "properties": {"a": {"$ref": "#/$defs/none"}}});
    assert!(Validator::new(&schema).is_err());
    let schema = json!({"type": "object", "$id": "https://example.com/a", "properties": {"a": {"$ref": "#/b"}}});
    assert!(Validator::new(&schema).is_err());
}

#[test]
fn a_schema_that_is_none_is_refused() {
    for schema in [
        json!(true),
        json!([]),
        json!({"type": "array"}),
        json!({"type": ["object", "null"]}),
        json!({"type": "object", "properties": {"a": {"type": "text"}}}),
        json!({"type": "object", "properties": {"a": {"pattern": "("}}}),
        json!({"type": "object", "properties": {"a": {"pattern": "(?=a)"}}}),
        json!({"type": "object", "properties": {"a": {"type": "integer", "default": "x"}}}),
    ] {
        assert!(Validator::new(&schema).is_err(), "{schema}");
    }
}

#[test]
fn a_schema_is_taken_at_its_bounds_and_refused_beyond() {
    let deep = |depth: usize| {
        let inner = (0..depth).fold(json!({}), |inner, _| json!({"not": inner}));
        json!({"type": "object", "not": inner})
    };
    assert!(Validator::new(&deep(DEPTH - 2)).is_ok());
    assert!(Validator::new(&deep(DEPTH - 1)).unwrap_err().to_string().contains("deeper"));

    let long = json!({"type": "object", "description": "x".repeat(SCHEMA_BYTES_MAX)});
    assert!(Validator::new(&long).unwrap_err().to_string().contains("bytes"));

    let many = |count: usize| json!({"type": "object", "allOf": vec![json!({"$ref": "#/$defs/a"}); count], "$defs": {"a": {}}});
    assert!(Validator::new(&many(SCHEMA_REFS_MAX)).is_ok());
    assert!(Validator::new(&many(SCHEMA_REFS_MAX + 1)).is_err());
}

const DEPTH: usize = crate::frame::DEPTH_MAX;

#[test]
fn a_schema_whose_references_explode_is_refused() {
    let mut definitions = Map::new();
    for n in 0..40 {
        let next = format!("#/$defs/a{}", n + 1);
        definitions
            .insert(format!("a{n}"), json!({"allOf": [{"$ref": next.clone()}, {"$ref": next}]}));
    }
    definitions.insert("a40".to_owned(), json!({"type": "object"}));
    let schema = json!({"type": "object", "$ref": "#/$defs/a0", "$defs": definitions});
    assert!(Validator::new(&schema).unwrap_err().to_string().contains("unfold"));
}

#[test]
fn a_schema_that_refers_to_itself_ends() {
    let tree =
        json!({"type": "object", "properties": {"next": {"$ref": "#"}, "n": {"type": "integer"}}});
    let validator = Validator::new(&tree).unwrap();
    assert!(validator.validate(json!({"next": {"next": {"n": 1}}})).is_ok());
    assert!(validator.validate(json!({"next": {"next": {"n": "x"}}})).is_err());
    for circle in [
        json!({"type": "object", "$ref": "#"}),
        json!({"type": "object", "allOf": [{"$ref": "#"}]}),
        json!({"type": "object", "anyOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}]}}}),
    ] {
        if let Ok(validator) = Validator::new(&circle) {
            let _ = validator.validate(json!({"a": 1}));
        }
    }
}

#[test]
fn a_chain_of_references_at_the_bound_ends() {
    let mut definitions = Map::new();
    for n in 0..SCHEMA_REFS_MAX - 1 {
        definitions.insert(format!("a{n}"), json!({"$ref": format!("#/$defs/a{}", n + 1)}));
    }
    definitions.insert(format!("a{}", SCHEMA_REFS_MAX - 1), json!({"writeOnly": true}));
    let schema = json!({"type": "object", "properties": {"a": {"$ref": "#/$defs/a0"}}, "$defs": definitions});
    let validator = Validator::new(&schema).unwrap();
    assert!(validator.sensitive().covers("a"));
    assert!(validator.validate(json!({"a": 1})).is_ok());
}

#[test]
fn undeclared_members_are_refused_unless_the_schema_says_otherwise() {
    assert!(validator(json!({})).validate(json!({"x": 1})).is_err());
    assert!(validator(json!({"additionalProperties": true})).validate(json!({"x": 1})).is_ok());
    let composed = validator(json!({"allOf": [{"properties": {"x": {"type": "integer"}}}]}));
    assert!(composed.validate(json!({"x": 1})).is_ok());
    assert!(composed.validate(json!({"y": 1})).is_err());
}

#[test]
fn a_value_becomes_part_of_one_argument() {
    let schema = json!({"required": ["name", "n"], "properties": {
        "name": {"type": "string"}, "n": {"type": "number"}, "yes": {"type": "boolean", "default": true},
        "filter": {"type": "string"}}});
    let template = template(
        &["tool", "--name={name}", "{n}", "{yes}/{n}", "a{{b}}", "--f={filter?}"],
        &schema,
    )
    .unwrap();
    let input = json!({"name": "a b; $(x) \"'\n*", "n": 2.5, "yes": true});
    assert_eq!(
        argv(&template, &input).unwrap(),
        ["tool", "--name=a b; $(x) \"'\n*", "2.5", "true/2.5", "a{b}"]
    );
    let input = json!({"name": "", "n": 1, "yes": false, "filter": ""});
    assert_eq!(
        argv(&template, &input).unwrap(),
        ["tool", "--name=", "1", "false/1", "a{b}", "--f="]
    );
}

#[test]
fn a_value_cannot_become_an_option() {
    let schema = json!({"required": ["a", "b"], "properties": {
        "a": {"type": ["string", "integer"]}, "b": {"type": "string"},
        "c": {"type": "string", "x-reeve-allow-dash": true}}});
    let reason = |command: &[&str], input: Value| {
        argv(&template(command, &schema).unwrap(), &input).unwrap_err().reason.unwrap()
    };
    assert_eq!(reason(&["t", "{a}"], json!({"a": "-rf"})), "option_like");
    assert_eq!(reason(&["t", "{a}"], json!({"a": -1})), "option_like");
    assert_eq!(reason(&["t", "{a}{b}"], json!({"a": "", "b": "-x"})), "option_like");
    assert_eq!(reason(&["t", "{a}-x"], json!({"a": ""})), "option_like");
    let ok = template(&["t", "--a={a}", "x{b}", "{c?}"], &schema).unwrap();
    let input = json!({"a": "-1", "b": "-2", "c": "-3"});
    assert_eq!(argv(&ok, &input).unwrap(), ["t", "--a=-1", "x-2", "-3"]);
    assert!(refused(&["t", "-{a}"], schema.clone()).contains("choose the option"));
    assert!(refused(&["t", "--{a}=1"], schema).contains("choose the option"));
}

#[test]
fn what_no_process_can_take_is_refused() {
    let schema = json!({"required": ["a"], "properties": {"a": {"type": "string"}}});
    let template = template(&["t", "x{a}"], &schema).unwrap();
    let reason = |input| argv(&template, &input).unwrap_err().reason.unwrap();
    assert_eq!(reason(json!({"a": "a\0b"})), "nul");
    assert_eq!(reason(json!({"a": "x".repeat(ARGUMENT_MAX)})), "argument_too_long");
    assert!(argv(&template, &json!({"a": "x".repeat(ARGUMENT_MAX - 1)})).is_ok());
    assert_eq!(reason(json!({})), "missing");
}

#[test]
fn a_template_that_cannot_hold_is_refused() {
    let schema = || {
        json!({"required": ["r"], "properties": {
            "r": {"type": "string"}, "filter": {"type": "string"}, "list": {"type": "array"},
            "any": {}, "maybe": {"type": ["string", "null"]}, "one": {"enum": ["a", 1]},
            "mixed": {"enum": ["a", {}]}, "key": {"type": "string", "format": "password"}}})
    };
    for (command, said) in [
        (&[][..], "at least one"),
        (&["{r}"], "program itself"),
        (&["a{r}"], "program itself"),
        (&[""], "no name"),
        (&["t", "{filtr?}"], "declares no `filtr`"),
        (&["t", "{filter}"], "may be absent"),
        (&["t", "{filter?}x"], "at its end"),
        (&["t", "{r}{filter?}"], "only placeholder"),
        (&["t", "{list?}"], "must be a string"),
        (&["t", "{any?}"], "must be a string"),
        (&["t", "{mixed?}"], "must be a string"),
        (&["t", "{key?}"], "sensitive"),
        (&["t", "{"], "without its"),
        (&["t", "}"], "lone"),
        (&["t", "{}"], "no placeholder"),
        (&["t", "{r x}"], "no placeholder"),
        (&["t", "a\0"], "NUL"),
    ] {
        let errors = refused(command, schema());
        assert!(errors.contains(said), "{command:?}: {errors}");
    }
    assert!(template(&["t", "{maybe?}", "{one?}"], &schema()).is_ok());
    let errors = template(&["t", "{filtr?}"], &schema()).unwrap_err();
    assert_eq!(errors[0].suggestion.as_deref(), Some("filter"));
    assert_eq!(errors[0].argument, Some(1));
    let many = vec!["x"; ARGUMENTS_MAX + 1];
    assert!(refused(&many, schema()).contains("at most 256"));
    assert!(template(&many[1..], &schema()).is_ok());
}

#[test]
fn a_sensitive_member_is_found_behind_a_reference() {
    let schema = json!({"required": ["key"], "properties": {"key": {"$ref": "#/$defs/key"}},
        "$defs": {"key": {"type": "string", "writeOnly": true}}});
    assert!(refused(&["t", "{key}"], schema).contains("sensitive"));
}

#[test]
fn a_validator_can_be_shared_between_threads() {
    fn shared<T: Send + Sync + Clone + fmt::Debug>() {}
    shared::<Validator>();
    shared::<Template>();
}

proptest! {
    /// Whatever the values are, the arguments stay where and as many as the template says.
    #[test]
    fn values_never_split_or_join_arguments(
        a in "\\PC{0,12}|[ \t\n\"'$`;|&<>*?{}\\\\-]{0,8}",
        b in proptest::option::of("\\PC{0,12}|[ \n\"'{}-]{0,8}"),
        n in any::<i64>(),
    ) {
        let schema = json!({"required": ["a", "n"], "properties": {
            "a": {"type": "string"}, "b": {"type": "string"}, "n": {"type": "integer"}}});
        let command = ["t", "{a}", "x={a}", "{b?}", "--b={b?}", "n{n}", "{{a}}", "end"];
        let template = template(&command, &schema).unwrap();
        let mut input = json!({"a": a, "n": n});
        if let Some(b) = &b {
            input["b"] = json!(b);
        }
        let result = argv(&template, &input);
        let option = a.starts_with('-') || b.as_ref().is_some_and(|b| b.starts_with('-'));
        prop_assert_eq!(result.is_err(), option);
        if let Ok(arguments) = result {
            let mut expected = vec!["t".to_owned(), a.clone(), format!("x={a}")];
            if let Some(b) = &b {
                expected.extend([b.clone(), format!("--b={b}")]);
            }
            expected.extend([format!("n{n}"), "{a}".to_owned(), "end".to_owned()]);
            prop_assert_eq!(arguments, expected);
        }
    }
}

#[test]
fn a_schema_that_refers_to_itself_many_times_over_is_checked_at_once() {
    for key in ["allOf", "anyOf", "oneOf"] {
        let schema = json!({"type": "object", "properties": {
            "n": {"type": "integer"}, "next": {key: [{"$ref": "#"}, {"$ref": "#"}]}}});
        let validator = Validator::new(&schema).unwrap();
        let input = (0..60).fold(json!({"n": "x"}), |inner, _| json!({"next": inner}));
        let fault = validator.validate(input).unwrap_err();
        assert_eq!(fault.problems.len(), 1);
        assert!(fault.message.contains("refers to itself"), "{}", fault.message);
    }
    let plain =
        json!({"type": "object", "properties": {"n": {"type": "integer"}, "next": {"$ref": "#"}}});
    let input = json!({"next": {"next": {"n": "x"}}});
    let fault = Validator::new(&plain).unwrap().validate(input).unwrap_err();
    assert_eq!(fault.problems[0].pointer, "/next/next/n");
}

#[test]
fn a_refusal_names_the_values_that_there_are() {
    let kinds = ["toml", "json", "yaml", "markdown", "conflict", "symlink", "manifest"];
    let listed = kinds.map(|kind| format!("\"{kind}\"")).join(", ");
    for kind in [
        json!({ "enum": kinds }),
        json!({ "anyOf": [{ "$ref": "#/$defs/kind" }, { "type": "null" }] }),
        json!({ "oneOf": [{ "type": "null" }, { "anyOf": [{ "$ref": "#/$defs/kind" }] }] }),
        json!({ "anyOf": [{ "$ref": "#/$defs/described" }, { "type": "null" }] }),
    ] {
        let schema = json!({
            "type": "object", "properties": { "kind": kind },
            "$defs": {
                "kind": { "type": "string", "enum": kinds },
                "described": { "oneOf": kinds.map(|kind| json!({ "const": kind, "type": "string" })) },
            },
        });
        let fault = refusal(&schema, json!({ "kind": "tml" }));
        assert_eq!(fault.problems[0].pointer, "/kind");
        assert_eq!(fault.problems[0].message, format!("\"tml\" is not one of {listed}"));
    }
    // Of several that may be meant none is chosen.
    let schema = json!({ "type": "object", "properties": { "n": {
        "anyOf": [{ "type": "integer", "minimum": 3 }, { "type": "integer", "maximum": -3 }] } } });
    let fault = refusal(&schema, json!({ "n": 0 }));
    assert!(fault.message.contains("anyOf"), "{}", fault.message);
    // Where something of the input is secret, nothing of it is quoted.
    let schema = json!({ "type": "object", "properties": {
        "kind": { "anyOf": [{ "enum": ["a", "b"] }, { "type": "null" }] },
        "key": { "type": "string", "writeOnly": true } } });
    let fault = refusal(&schema, json!({ "kind": "tml", "key": "hidden enough" }));
    assert_eq!(fault.problems[0].message, "value is not one of \"a\", \"b\"");
}

fn refusal(schema: &Value, input: Value) -> Fault {
    Validator::new(schema).unwrap().validate(input).unwrap_err()
}

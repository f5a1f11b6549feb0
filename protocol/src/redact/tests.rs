use serde_json::json;

use super::*;
use crate::input::Validator;

const CANARY: &str = "correct-horse";

fn secret() -> Value {
    json!({ "type": "string", "format": "password" })
}

fn of(schema: &Value) -> Sensitive {
    Sensitive::new(schema).unwrap_or_else(|error| panic!("{schema}: {error}"))
}

fn shown(schema: &Value, input: &Value) -> Value {
    of(schema).withhold(input).shown
}

fn refused(schema: &Value) -> String {
    Sensitive::new(schema).expect_err(&schema.to_string()).to_string()
}

#[test]
fn each_mark_withholds_and_a_name_never_does() {
    for mark in [
        json!({"format": "password"}),
        json!({"writeOnly": true}),
        json!({"x-reeve-sensitive": true}),
    ] {
        let schema = json!({"properties": {"a": mark, "password": {}, "password_policy": {}}});
        let input = json!({"a": CANARY, "password": "shown", "password_policy": "kept", "n": 1});
        let Withheld { shown, secrets } = of(&schema).withhold(&input);
        let expected = json!({"a": {"redacted": true}, "password": "shown", "password_policy": "kept", "n": 1});
        assert_eq!(shown, expected);
        assert_eq!(secrets, [Secret::new(CANARY)]);
    }
    let off = json!({"properties": {"a": {"writeOnly": false, "format": "uri"}}});
    assert!(!of(&off).any());
}

#[test]
fn a_mark_is_found_through_every_shape() {
    let s = secret();
    for schema in [
        json!({"properties": {"a": s}}),
        json!({"properties": {"a": {}}, "allOf": [{"properties": {"a": s}}]}),
        json!({"properties": {"a": {"anyOf": [{"type": "null"}, s]}}}),
        json!({"properties": {"a": {"oneOf": [{"type": "integer"}, {"allOf": [s]}]}}}),
        json!({"properties": {"a": {}}, "if": {"properties": {"a": s}}}),
        json!({"properties": {"a": {}}, "if": {}, "then": {"properties": {"a": s}}}),
        json!({"properties": {"a": {}}, "if": {}, "else": {"properties": {"a": s}}}),
        json!({"properties": {"a": {}}, "patternProperties": {"^a$": s}}),
        json!({"additionalProperties": s}),
        json!({"properties": {"a": {}}, "dependentSchemas": {"b": {"properties": {"a": s}}}}),
        json!({"properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": s}}),
        json!({"properties": {"a": {"$ref": "#/$defs/x%20y"}}, "$defs": {"x y": s}}),
        json!({"properties": {"a": {"$ref": "#/$defs/x", "title": "beside"}},
               "$defs": {"x": {"anyOf": [{"$ref": "#/$defs/y"}]}, "y": s}}),
        json!({"properties": {"a": {"type": "string", "$ref": "#/$defs/x", "writeOnly": true}},
               "$defs": {"x": {"minLength": 1}}}),
        json!({"properties": {"a": {"$ref": "#n"}},
               "$defs": {"x": {"$anchor": "n", "writeOnly": true}}}),
        json!({"properties": {"a": {"$dynamicRef": "#n"}},
               "$defs": {"x": {"$dynamicAnchor": "n", "format": "password"}}}),
        json!({"properties": {"a": {"$ref": "#/definitions/x"}}, "definitions": {"x": s}}),
    ] {
        assert!(of(&schema).covers("a"), "{schema}");
        let shown = shown(&schema, &json!({"a": CANARY}));
        assert_eq!(shown, json!({"a": {"redacted": true}}), "{schema}");
    }
}

#[test]
fn items_are_withheld_where_their_position_says_so() {
    let s = secret();
    let input = json!({"a": ["first", CANARY, "third"]});
    for (a, expected) in [
        (json!({"items": s}), json!([withheld(), withheld(), withheld()])),
        (json!({"prefixItems": [{}, s]}), json!(["first", withheld(), "third"])),
        (json!({"prefixItems": [{}], "items": s}), json!(["first", withheld(), withheld()])),
        (json!({"contains": s}), json!([withheld(), withheld(), withheld()])),
    ] {
        let schema = json!({"properties": {"a": a}});
        assert_eq!(shown(&schema, &input), json!({"a": expected}), "{schema}");
        assert!(of(&schema).covers("a"));
    }
}

#[test]
fn other_members_stay_as_they_are() {
    let schema = json!({
        "properties": {"plain": {}, "t": secret()},
        "patternProperties": {"^secret_": secret(), "^open_": {}},
        "additionalProperties": {"properties": {"inner": secret()}},
    });
    let input = json!({"plain": 1, "t": CANARY, "secret_x": CANARY, "open_x": {"inner": "seen"},
        "other": {"inner": CANARY, "next": [1]}});
    let expected = json!({"plain": 1, "t": withheld(), "secret_x": withheld(),
        "open_x": {"inner": "seen"}, "other": {"inner": withheld(), "next": [1]}});
    assert_eq!(shown(&schema, &input), expected);
    assert!(!of(&schema).covers("plain") && !of(&schema).covers("open_x"));
    assert!(of(&schema).covers("other"));
}

#[test]
fn a_secret_that_another_value_repeats_is_taken_out_of_it() {
    let schema = json!({"properties": {"pass": secret(), "long": secret(), "url": {}}});
    let long = format!("{CANARY}-battery");
    let url = format!("https://me:{CANARY}@host/{long}");
    let input = json!({"pass": CANARY, "long": long, "url": [url]});
    let expected = json!({"pass": withheld(), "long": withheld(),
        "url": ["https://me:[redacted]@host/[redacted]"]});
    assert_eq!(shown(&schema, &input), expected);
}

#[test]
fn an_object_is_withheld_whole_and_its_texts_are_secrets() {
    let schema = json!({"properties": {"login": {"type": "object", "writeOnly": true}}});
    let input = json!({"login": {"user": "somebody", "keys": ["abcdefg", 7, true, null]}});
    let Withheld { shown, secrets } = of(&schema).withhold(&input);
    assert_eq!(shown, json!({"login": {"redacted": true}}));
    assert_eq!(secrets, [Secret::new("abcdefg"), Secret::new("somebody")]);
    let whole = json!({"writeOnly": true, "properties": {"a": {}}});
    assert_eq!(of(&whole).withhold(&input).shown, withheld());
    assert!(of(&whole).covers("a"));
}

#[test]
fn a_mark_at_depth_40_is_found() {
    let (mut schema, mut input, mut expected) = (secret(), json!(CANARY), withheld());
    for _ in 0..40 {
        schema = json!({"properties": {"a": {"allOf": [schema]}}});
        input = json!({"a": input, "b": 1});
        expected = json!({"a": expected, "b": 1});
    }
    assert_eq!(shown(&schema, &input), expected);
}

#[test]
fn a_schema_that_refers_to_itself_is_followed_by_the_value() {
    let tree = json!({
        "properties": {"key": secret(), "name": {}, "below": {"items": {"$ref": "#"}}},
        "$dynamicAnchor": "node",
        "patternProperties": {"^via_": {"$dynamicRef": "#node"}},
    });
    let input =
        json!({"name": "a", "below": [{"key": CANARY, "below": [{"via_x": {"key": CANARY}}]}]});
    let expected = json!({"name": "a",
        "below": [{"key": withheld(), "below": [{"via_x": {"key": withheld()}}]}]});
    assert_eq!(shown(&tree, &input), expected);
    // Circles that lead nowhere end, too.
    let circle = json!({"allOf": [{"$ref": "#/$defs/a"}], "properties": {"t": secret()},
        "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/b"}]}, "b": {"$ref": "#/$defs/a"}}});
    assert_eq!(shown(&circle, &json!({"t": CANARY})), json!({"t": withheld()}));
}

#[test]
fn what_cannot_be_followed_is_refused_where_anything_is_marked() {
    let s = secret();
    for (keywords, said) in [
        (json!({"not": {"properties": {"a": s}}}), "`not` leads to a mark"),
        (json!({"unevaluatedProperties": s}), "`unevaluatedProperties` leads"),
        (json!({"unevaluatedItems": {"$ref": "#/$defs/s"}}), "`unevaluatedItems` leads"),
        (json!({"propertyNames": s}), "`propertyNames` leads"),
        (json!({"contentSchema": {"properties": {"a": s}}}), "`contentSchema` leads"),
        (json!({"dependencies": {"a": {"properties": {"b": s}}}}), "`dependencies` leads"),
        (json!({"x-form": {"fields": [s]}}), "`x-form` is no keyword"),
        (json!({"properties": {"a": {"$ref": "#/$defs/none"}}}), "is not followed"),
        (json!({"properties": {"a": {"$ref": "#nowhere"}}}), "is not followed"),
        (json!({"$ref": "https://json-schema.org/draft/2020-12/schema"}), "is not followed"),
        (json!({"properties": {"a": {"$id": "http://x/y", "$ref": "#/$defs/s"}}}), "an `$id`"),
        (json!({"allOf": [{"$anchor": "s"}, {"$anchor": "s"}]}), "the name \"s\""),
    ] {
        let mut schema = json!({"properties": {}, "$defs": {"s": s}, "type": "object"});
        for (key, value) in keywords.as_object().unwrap() {
            schema[key] = value.clone();
        }
        let error = refused(&schema);
        assert!(error.contains(said), "{schema}: {error}");
        assert!(Validator::new(&schema).is_err(), "{schema}");
    }
    let closed = json!({"properties": {"t": s}, "allOf": [{}], "unevaluatedProperties": false});
    assert!(of(&closed).covers("t"));
    let unmarked = json!({"not": {"properties": {"a": {}}}, "x-form": {"fields": [{}]},
        "properties": {"a": {"$id": "http://x/y"}}});
    assert!(!of(&unmarked).any());
}

#[test]
fn a_schema_of_too_many_parts_is_refused() {
    let parts = |n: usize| {
        let all: Vec<Value> = (0..n).map(|_| json!({})).collect();
        json!({"writeOnly": true, "allOf": all})
    };
    assert!(Sensitive::new(&parts(9_999)).is_ok());
    assert!(refused(&parts(10_000)).contains("more than 10000 schemas"));
}

#[test]
fn withholding_twice_changes_nothing() {
    let schema = json!({"properties": {"t": secret(), "n": {"items": secret()}}});
    let once = shown(&schema, &json!({"t": CANARY, "n": [CANARY, CANARY], "o": 1}));
    assert_eq!(of(&schema).withhold(&once), Withheld { shown: once, secrets: Vec::new() });
}

#[test]
fn a_walk_over_its_bound_withholds_the_rest() {
    let branches: Vec<Value> =
        (0..2_000).map(|n| json!({"items": secret(), "title": n.to_string()})).collect();
    let schema = json!({"properties": {"many": {"items": {"allOf": branches}}, "z": {}}});
    let many: Vec<Value> = (0..4_000).map(|_| json!([])).collect();
    let shown = shown(&schema, &json!({"many": many, "z": CANARY}));
    assert_eq!(shown["many"][0], json!([]));
    assert_eq!(shown["many"][3_999], withheld());
}

#[test]
fn a_secret_is_of_a_length_that_can_be_found_again() {
    let schema =
        json!({"type": "object", "properties": {"t": {"type": "array", "writeOnly": true}}});
    let validator = Validator::new(&schema).unwrap();
    let fits = validator.validate(json!({"t": ["sixsix", "x".repeat(SECRETS_MAX - 6), 1]}));
    assert_eq!(fits.map(|_| ()), Ok(()));
    let fault = validator.validate(json!({"t": ["sixsix", "five5"]})).unwrap_err();
    assert_eq!(fault.code, Code::InvalidParams);
    assert_eq!(fault.reason.as_deref(), Some("secret_too_short"));
    assert_eq!(fault.problems[0].pointer, "/t");
    assert!(fault.message.contains("at least 6 bytes") && !fault.message.contains("five5"));
    let fault = validator.validate(json!({"t": ["x".repeat(SECRETS_MAX), "y"]})).unwrap_err();
    assert_eq!(fault.reason.as_deref(), Some("secret_too_short"));
    let fault = validator.validate(json!({"t": ["x".repeat(SECRETS_MAX + 1)]})).unwrap_err();
    assert_eq!(fault.reason.as_deref(), Some("secret_too_long"));
    let many = |count: usize| validator.validate(json!({"t": vec!["sixsix"; count]}));
    assert!(many(crate::secret::SECRETS_COUNT_MAX).is_ok());
    let fault = many(crate::secret::SECRETS_COUNT_MAX + 1).unwrap_err();
    assert_eq!(fault.reason.as_deref(), Some("too_many_secrets"));
}

#[test]
fn no_problem_tells_anything_from_inside_of_a_withheld_value() {
    let validator = Validator::new(&json!({
        "type": "object",
        "properties": {
            "t": {
                "writeOnly": true, "type": "object", "additionalProperties": false,
                "properties": {"n": {"type": "integer"}, "p": {"pattern": "^x"}, "e": {"enum": [1]}},
            },
            "list": {"items": {"format": "password", "maxLength": 3}, "uniqueItems": true},
            "other": {"type": "integer"},
        },
    }))
    .unwrap();
    for input in [
        json!({"t": {CANARY: 1}}),
        json!({"t": {"n": CANARY}}),
        json!({"t": {"p": CANARY, "e": CANARY}}),
        json!({"t": CANARY}),
        json!({"list": [CANARY]}),
        json!({"list": [CANARY, CANARY]}),
        json!({"other": CANARY}),
        json!({"t": {"n": 1}, "other": [CANARY]}),
    ] {
        let fault = validator.validate(input.clone()).unwrap_err();
        let told = serde_json::to_string(&fault).unwrap();
        assert!(!told.contains(CANARY) && !told.contains("horse"), "{input}: {told}");
    }
    let fault = validator.validate(json!({"t": {"n": CANARY}})).unwrap_err();
    assert_eq!(fault.problems[0].pointer, "/t");
    assert!(fault.problems[0].message.contains("(type)"), "{fault:?}");
}

//! The error of each kind of configuration mistake, word for word.

use gpumeter::config::Config;

/// All errors of a text, as they are printed.
fn problems(text: &str) -> String {
    Config::parse(text, "c.yaml").err().map(|problems| problems.to_string()).unwrap_or_default()
}

#[test]
fn each_mistake_has_an_error_that_says_what_to_do() {
    for (text, expected) in MISTAKES {
        let expected: Vec<String> = expected.lines().map(|line| format!("c.yaml:{line}")).collect();
        assert_eq!(problems(text), expected.join("\n"), "\n--- of this file:\n{text}");
    }
}

/// A file, and what is printed after `c.yaml:`, line by line.
const MISTAKES: &[(&str, &str)] = &[
    (
        "ledger: {retention: {minutes: 100d, quarter_hours: 90d}}",
        "1:37: ledger.retention.quarter_hours: quarter hours are kept for 90d, less than minutes, 100d; give quarter_hours of 100d or more",
    ),
    (
        "ledger: {retention: {minutes: 500d}}",
        "1:22: ledger.retention.minutes: quarter hours are kept for 400d, less than minutes, 500d; give quarter_hours of 500d or more",
    ),
    (
        "ledger: {retention: {minutes: 1h, quarter_hours: 1w2months}}",
        "1:31: ledger.retention.minutes: \"1h\" is shorter than 1d; give a duration from 1d to 3650d
1:50: ledger.retention.quarter_hours: \"1w2months\" is not a duration; give a number with its unit, such as 500ms, 1s, 2m or 1h",
    ),
    ("a: b: c", "1:5: not valid YAML: mapping values are not allowed in this context"),
    ("a:\n\tb: 1", "2:2: not valid YAML: tabs disallowed within this context (block indentation)"),
    ("node: {name: 'x", "1:14: not valid YAML: unclosed quote"),
    (
        r#"a: 1
---
b: 2"#,
        "3:1: not valid YAML: a second document begins; keep one",
    ),
    (
        "- a",
        "1:1: the file is not a mapping; give keys with values: node, sampling, nvml, attribution, prices, carbon, tenants, advice, terms, billing, ledger, otlp, limits, web",
    ),
    (
        "text",
        "1:1: the file is not a mapping; give keys with values: node, sampling, nvml, attribution, prices, carbon, tenants, advice, terms, billing, ledger, otlp, limits, web",
    ),
    (
        r#"? [a]
: b"#,
        "1:3: has a key that is not a word; give names only",
    ),
    (
        "1: x",
        "1:1: 1: unknown key; the keys here are node, sampling, nvml, attribution, prices, carbon, tenants, advice, terms, billing, ledger, otlp, limits, web",
    ),
    (
        r#"advice: {classes: [{match: {slurm_acount: "phys*"}, class: batch}]}"#,
        "1:43: advice.classes[0].match.slurm_acount: \"slurm_acount\" is not a label of gpu_workload_info; did you mean slurm_account?",
    ),
    (
        "advice: {classes: [{match: {slurm_account: physics}, class: bach}]}",
        "1:61: advice.classes[0].class: \"bach\" is not known here; did you mean `batch`?",
    ),
    (
        "advice: {classes: [{match: {slurm_account: physics}, class: unknown}]}",
        "1:61: advice.classes[0].class: \"unknown\" is not known here; give batch, interactive, service, warm, interruptible or reserve",
    ),
    (
        "advice: {classes: [{class: batch}]}",
        "1:20: advice.classes[0].match: is missing; give a mapping of labels of gpu_workload_info with patterns",
    ),
    (
        r#"tenants: {rules: [{match: {slurm_acount: "phys*"}, tenant: physics}]}"#,
        "1:42: tenants.rules[0].match.slurm_acount: \"slurm_acount\" is not a label of gpu_workload_info; did you mean slurm_account?",
    ),
    (
        r#"tenants: {rules: [{match: {slurm_account: "phys*"}, tenant: __system__}]}"#,
        "1:53: tenants.rules[0].tenant: \"__system__\" is a reserved name; give one that does not begin with __",
    ),
    (
        r#"tenants: {rules: [{match: {slurm_account: "phys*"}, tenant: "a{"}]}"#,
        "1:53: tenants.rules[0].tenant: \"a{\" has a brace without its pair; give placeholders such as {slurm_account}",
    ),
    (
        r#"tenants: {rules: [{match: {slurm_account: "phys*"}, tenant: "{colour}"}]}"#,
        "1:53: tenants.rules[0].tenant: \"colour\" is not a label of gpu_workload_info; give one such as k8s_namespace_name, slurm_account or k8s_pod_label_<name>",
    ),
    (
        r#"tenants: {rules: [{match: {slurm_account: "phys*"}}]}"#,
        "1:19: tenants.rules[0].tenant: is missing; give a name, with {label} for the value of a label",
    ),
    (
        r#"tenants: {rules: [{match: {slurm_account: "phys*"}, tenant: a, tenants: [a]}]}"#,
        "1:64: tenants.rules[0].tenants: belongs to a tenant with placeholders; remove it, or give tenant: \"{label}\"",
    ),
    (
        r#"tenants: {rules: [{match: {container_image: "*"}, tenant: a}]}"#,
        "1:20: tenants.rules[0].match: reads container_image, which users can forge; match also k8s_namespace_name or slurm_account by more than wildcards, or give trust_labels: true",
    ),
    (
        r#"tenants: {rules: [{match: {k8s_namespace_name: "m*", k8s_pod_label_team: "*"}, tenant: "{k8s_pod_label_team}"}]}"#,
        "1:80: tenants.rules[0].tenant: \"{k8s_pod_label_team}\" has a placeholder in a rule that reads k8s_pod_label_team, which users can forge; list the tenants that it may yield (tenants: [a, b]), or give trust_labels: true",
    ),
    (
        r#"tenants: {attributes: {ml: {Cost: "4711"}}}"#,
        "1:35: tenants.attributes.ml.Cost: \"Cost\" is not the name of an attribute; give at most 40 of a-z, 0-9 and _, such as cost_center",
    ),
    (
        r#"tenants: {attributes: {ml: "4711"}}"#,
        "1:28: tenants.attributes.ml: is not a mapping; give names with values, or remove the entry",
    ),
    (
        r#"prices: {book: example}
tenants: {budget: {ml: 5000}}"#,
        "2:11: tenants.budget: unknown key; did you mean `budgets`?",
    ),
    (
        r#"tenants: {budgets: {ml: 5000}}"#,
        "1:11: tenants.budgets: need prices; give prices.rates, or remove them",
    ),
    (
        r#"prices: {book: example}
tenants: {budgets: {ml: "5,000", bio: -1, __system__: 1, chem: 1e3, lab: 1000000000000000, sim: [1, 2]}}"#,
        r#"2:25: tenants.budgets.ml: "5,000" is not a decimal number; give digits such as 2.49
2:39: tenants.budgets.bio: "-1" is negative; give a number >= 0
2:55: tenants.budgets.__system__: "__system__" is a reserved name; give a tenant that does not begin with __
2:64: tenants.budgets.chem: "1e3" is not a decimal number; give digits such as 2.49
2:74: tenants.budgets.lab: "1000000000000000" is 1000000000000000 or more; give a lower number
2:101: tenants.budgets.sim: "2" is a second budget of this tenant; give one"#,
    ),
    (
        r#"prices: {book: example}
tenants: {budgets: [ml]}"#,
        "2:20: tenants.budgets: is not a mapping; give a mapping of tenants with amounts, or remove the key",
    ),
    ("sampling: {intervall: 1s}", "1:12: sampling.intervall: unknown key; did you mean `interval`?"),
    (
        r#"samplng:
  interval: 1s"#,
        "1:1: samplng: unknown key; did you mean `sampling`?",
    ),
    ("interval: 1s", "1:1: interval: unknown key; did you mean `sampling.interval`?"),
    (
        "colour: red",
        "1:1: colour: unknown key; the keys here are node, sampling, nvml, attribution, prices, carbon, tenants, advice, terms, billing, ledger, otlp, limits, web",
    ),
    (
        r#"node:
  name: a
  name: b"#,
        "3:3: node.name: is given twice, first on line 2; keep one",
    ),
    (
        r#"node: {name: a}
node: {cluster: b}"#,
        "2:1: node: is given twice, first on line 1; keep one",
    ),
    (
        "node: 5",
        "1:7: node: is not a mapping; give keys with values: name, cluster, pool, instance_type, spot, labels_file",
    ),
    (
        "node: [a]",
        "1:7: node: is not a mapping; give keys with values: name, cluster, pool, instance_type, spot, labels_file",
    ),
    ("node: {name: [a]}", "1:14: node.name: is a list; give a name, or remove the key"),
    ("node: {name: {a: b}}", "1:14: node.name: is a mapping; give a name, or remove the key"),
    (
        r#"node:
  name:
  cluster: x"#,
        "2:7: node.name: has no value; give a name, or remove the key",
    ),
    ("node: {name: ''}", r#"1:14: node.name: "" is empty; give a name of 1 to 200 printable characters"#),
    (
        "node: {name: ' a'}",
        r#"1:14: node.name: " a" begins or ends with a blank; give a name of 1 to 200 printable characters"#,
    ),
    (
        r#"node: {name: "a\nb"}"#,
        r#"1:14: node.name: "a\nb" contains control characters; give a name of 1 to 200 printable characters"#,
    ),
    (
        "sampling: {interval: 5}",
        r#"1:22: sampling.interval: "5" is not a duration; give a number with its unit, such as 500ms, 1s, 2m or 1h"#,
    ),
    (
        "sampling: {interval: -5s}",
        r#"1:22: sampling.interval: "-5s" is negative; give a number with its unit, such as 500ms, 1s, 2m or 1h"#,
    ),
    (
        "sampling: {interval: 50ms}",
        r#"1:22: sampling.interval: "50ms" is shorter than 100ms; give a duration from 100ms to 1m"#,
    ),
    (
        "sampling: {interval: 2m}",
        r#"1:22: sampling.interval: "2m" is longer than 1m; give a duration from 100ms to 1m"#,
    ),
    (
        "sampling: {interval: 300000000h}",
        r#"1:22: sampling.interval: "300000000h" is longer than 1m; give a duration from 100ms to 1m"#,
    ),
    (
        "sampling: {interval: 999999999999999h}",
        r#"1:22: sampling.interval: "999999999999999h" is longer than 1m; give a duration from 100ms to 1m"#,
    ),
    (
        "sampling: {interval: 1 fortnight}",
        r#"1:22: sampling.interval: "1 fortnight" is not a duration; give a number with its unit, such as 500ms, 1s, 2m or 1h"#,
    ),
    ("sampling: {level: Full}", r#"1:19: sampling.level: "Full" is not known here; did you mean `full`?"#),
    (
        "sampling: {level: everything}",
        r#"1:19: sampling.level: "everything" is not known here; give lean, standard or full"#,
    ),
    (
        "nvml: {library: libnvidia-ml.so}",
        r#"1:17: nvml.library: "libnvidia-ml.so" is not an absolute path; give a path that begins with /"#,
    ),
    (
        "attribution: {presence: yes}",
        r#"1:25: attribution.presence: "yes" is not known here; give auto, true or false"#,
    ),
    (
        "attribution: {presence: True}",
        r#"1:25: attribution.presence: "True" is not known here; did you mean `true`?"#,
    ),
    (
        "attribution: {presence: 1}",
        r#"1:25: attribution.presence: "1" is not known here; give auto, true or false"#,
    ),
    (
        "attribution: {standing: {gpu: all}}",
        "1:25: attribution.standing: is not a list; begin each entry with `- `",
    ),
    (
        "attribution: {standing: [all]}",
        "1:26: attribution.standing[0]: is not a mapping; give keys with values: id, gpu, fraction, user, group, namespace, unit",
    ),
    (
        r#"attribution:
  standing:
    - gpu: all"#,
        "3:7: attribution.standing[0]: has no holder; give user: NAME, group: NAME, namespace: NAME or unit: NAME.service",
    ),
    (
        r#"attribution:
  standing:
    - {gpu: all, user: a, unit: b.service}"#,
        "3:7: attribution.standing[0]: has user and unit; keep the one that holds it",
    ),
    (
        r#"attribution:
  standing:
    - {id: physics, gpu: 0, user: [a, b]}
    - {gpu: 1, namespace: physics}"#,
        r#"4:16: attribution.standing[1].namespace: "physics" holds as team:physics, as the users of the grant physics on line 3 do; give that grant another id"#,
    ),
    (
        "attribution: {standing: [{user: a}]}",
        "1:26: attribution.standing[0].gpu: is missing; give all, an index, a range such as 4-7, or a UUID, or a list of them",
    ),
    (
        "attribution: {standing: [{gpu: GPU-12, user: a}]}",
        r#"1:32: attribution.standing[0].gpu: "GPU-12" is not a GPU; give all, an index such as 0, a range such as 4-7, or a UUID as nvidia-smi -L prints it"#,
    ),
    (
        "attribution: {standing: [{gpu: -1, user: a}]}",
        r#"1:32: attribution.standing[0].gpu: "-1" is not a GPU; give all, an index such as 0, a range such as 4-7, or a UUID as nvidia-smi -L prints it"#,
    ),
    (
        "attribution: {standing: [{gpu: 7-4, user: a}]}",
        r#"1:32: attribution.standing[0].gpu: "7-4" runs backwards; give the lower index first, as in 4-7"#,
    ),
    (
        "attribution: {standing: [{gpu: 0-4294967295, user: a}]}",
        r#"1:32: attribution.standing[0].gpu: "0-4294967295" names more than 256 GPUs; give a range such as 4-7"#,
    ),
    (
        "attribution: {standing: [{gpu: 4-, user: a}]}",
        r#"1:32: attribution.standing[0].gpu: "4-" is not a GPU; give all, an index such as 0, a range such as 4-7, or a UUID as nvidia-smi -L prints it"#,
    ),
    (
        "attribution: {standing: [{gpu: [0, 1, 0], user: a}]}",
        r#"1:39: attribution.standing[0].gpu[2]: "0" names GPU 0 again; name each GPU once"#,
    ),
    (
        "attribution: {standing: [{gpu: [5, 4-7], user: a}]}",
        r#"1:36: attribution.standing[0].gpu[1]: "4-7" names GPU 5 again; name each GPU once"#,
    ),
    (
        "attribution: {standing: [{gpu: [all, 0], user: a}]}",
        r#"1:38: attribution.standing[0].gpu[1]: "0" stands beside all; give all alone, or the GPUs without it"#,
    ),
    (
        "attribution: {standing: [{gpu: [0, all], user: a}]}",
        r#"1:36: attribution.standing[0].gpu[1]: "all" stands beside other GPUs; give all alone, or the GPUs without it"#,
    ),
    (
        "attribution: {standing: [{gpu: [], user: a}]}",
        r#"1:32: attribution.standing[0].gpu: is an empty list; give all, an index, a range such as 4-7, or a UUID, or a list of them, or remove the key"#,
    ),
    (
        r#"attribution:
  standing:
    - {gpu: 0-3, user: a, fraction: 2/3}
    - {gpu: [2, 3], user: b, fraction: 0.5}"#,
        "4:30: attribution.standing[1].fraction: together with line 3 grants 7/6 of GPU 2; keep the sum at 1 or below",
    ),
    (
        "attribution: {standing: [{gpu: 0, user: [ada, ben]}]}",
        "1:35: attribution.standing[0].user: names several users; give id: NAME, the name under which they hold it together",
    ),
    (
        "attribution: {standing: [{id: lab, gpu: 0, user: [ada, ben, ada]}]}",
        r#"1:61: attribution.standing[0].user[2]: "ada" is in the list twice; keep one"#,
    ),
    (
        "attribution: {standing: [{gpu: 0, group: 1200}]}",
        r#"1:42: attribution.standing[0].group: "1200" is a number; give the name of the group"#,
    ),
    (
        "attribution: {standing: [{gpu: 0, group: [a, b]}]}",
        "1:42: attribution.standing[0].group: is a list; give a group name, or remove the key",
    ),
    (
        "attribution: {standing: [{gpu: 0, user: a, group: b, unit: c.service}]}",
        "1:26: attribution.standing[0]: has user and group and unit; keep the one that holds it",
    ),
    (
        "attribution: {standing: [{gpu: 0, usr: a}]}",
        r#"1:26: attribution.standing[0]: has no holder; give user: NAME, group: NAME, namespace: NAME or unit: NAME.service
1:35: attribution.standing[0].usr: unknown key; did you mean `user`?"#,
    ),
    (
        "attribution: {standing: [{gpu: 0, unit: b}]}",
        r#"1:41: attribution.standing[0].unit: "b" is not a systemd service; give NAME.service"#,
    ),
    (
        "attribution: {standing: [{gpu: 0, user: a b}]}",
        r#"1:41: attribution.standing[0].user: "a b" contains a blank; give one name"#,
    ),
    (
        "attribution: {standing: [{gpu: 0, user: a, fraction: 1/0}]}",
        r#"1:54: attribution.standing[0].fraction: "1/0" divides by zero; give a fraction such as 1/2 or 0.5, or 1 for the whole GPU"#,
    ),
    (
        "attribution: {standing: [{gpu: 0, user: a, fraction: 0/2}]}",
        r#"1:54: attribution.standing[0].fraction: "0/2" grants nothing; give a fraction such as 1/2 or 0.5, or 1 for the whole GPU"#,
    ),
    (
        "attribution: {standing: [{gpu: 0, user: a, fraction: 3/2}]}",
        r#"1:54: attribution.standing[0].fraction: "3/2" is more than one GPU; give a fraction such as 1/2 or 0.5, or 1 for the whole GPU"#,
    ),
    (
        "attribution: {standing: [{gpu: 0, user: a, fraction: 0.1234567891}]}",
        r#"1:54: attribution.standing[0].fraction: "0.1234567891" has more than nine decimals; give a fraction such as 1/2 or 0.5, or 1 for the whole GPU"#,
    ),
    (
        "attribution: {standing: [{gpu: 0, user: a, fraction: 0.0}]}",
        r#"1:54: attribution.standing[0].fraction: "0.0" grants nothing; give a fraction such as 1/2 or 0.5, or 1 for the whole GPU"#,
    ),
    (
        "attribution: {standing: [{gpu: 0, user: a, fraction: 1.5}]}",
        r#"1:54: attribution.standing[0].fraction: "1.5" is more than one GPU; give a fraction such as 1/2 or 0.5, or 1 for the whole GPU"#,
    ),
    (
        "attribution: {standing: [{gpu: 0, user: a, fraction: .5}]}",
        r#"1:54: attribution.standing[0].fraction: ".5" is not a fraction; give a fraction such as 1/2 or 0.5, or 1 for the whole GPU"#,
    ),
    (
        "attribution: {standing: [{gpu: 0, user: a, fraction: 50%}]}",
        r#"1:54: attribution.standing[0].fraction: "50%" is not a fraction; give a fraction such as 1/2 or 0.5, or 1 for the whole GPU"#,
    ),
    (
        "attribution: {standing: [{gpu: 0, user: a, fraction: -1/2}]}",
        r#"1:54: attribution.standing[0].fraction: "-1/2" is not a fraction; give a fraction such as 1/2 or 0.5, or 1 for the whole GPU"#,
    ),
    (
        "attribution: {standing: [{gpu: 0, user: a, fraction: 1/99999999999}]}",
        r#"1:54: attribution.standing[0].fraction: "1/99999999999" is not a fraction; give a fraction such as 1/2 or 0.5, or 1 for the whole GPU"#,
    ),
    (
        "attribution: {standing: [{gpu: 0, user: a, fraction: half}]}",
        r#"1:54: attribution.standing[0].fraction: "half" is not a fraction; give a fraction such as 1/2 or 0.5, or 1 for the whole GPU"#,
    ),
    (
        r#"attribution:
  standing:
    - {id: a, gpu: 0, user: a}
    - {id: a, gpu: 1, user: b}"#,
        r#"4:8: attribution.standing[1].id: "a" is the name of the grant on line 3 too; give another name"#,
    ),
    (
        r#"attribution:
  standing:
    - {gpu: 0, user: a, fraction: 2/3}
    - {gpu: 1, user: a}
    - {gpu: 0, user: b, fraction: 1/2}"#,
        "5:25: attribution.standing[2].fraction: together with line 3 grants 7/6 of GPU 0; keep the sum at 1 or below",
    ),
    (
        r#"attribution:
  standing:
    - {gpu: 0, user: a, fraction: 1/2}
    - {gpu: 0, user: b, fraction: 1/3}
    - {gpu: all, user: c, fraction: 1/4}"#,
        "5:27: attribution.standing[2].fraction: together with lines 3, 4 grants 13/12 of GPU 0; keep the sum at 1 or below",
    ),
    (
        r#"attribution:
  standing:
    - {gpu: all, user: a}
    - {gpu: all, user: b}
    - {gpu: 3, user: c}"#,
        "4:7: attribution.standing[1].fraction: together with line 3 grants 2 of every GPU; keep the sum at 1 or below",
    ),
    (
        r#"attribution:
  standing:
    - {gpu: 0, user: a, fraction: 1/4294967291}
    - {gpu: 0, user: a, fraction: 1/4294967279}
    - {gpu: 0, user: a, fraction: 1/4294967231}
    - {gpu: 0, user: a, fraction: 1/4294967197}
    - {gpu: 0, user: a, fraction: 1/4294967189}
"#,
        "7:25: attribution.standing[4].fraction: cannot be added exactly to lines 3, 4, 5, 6; give the grants of GPU 0 one denominator",
    ),
    ("prices: {book: mine}", r#"1:16: prices.book: "mine" is not known here; give example"#),
    (
        "prices: {book: example, currency: USD}",
        "1:10: prices.book: your own prices are given too, on line 1; keep one of the two",
    ),
    (
        r#"prices:
  book: example
  rates:
    - gpu_hour: 1"#,
        "2:3: prices.book: your own prices are given too, on line 3; keep one of the two",
    ),
    (
        "prices: {currency: USD}",
        "1:10: prices.currency: has no rates; give prices.rates, or remove the currency",
    ),
    (
        "prices: {currency: USD, rates: []}",
        "1:10: prices.currency: has no rates; give prices.rates, or remove the currency",
    ),
    (
        r#"prices:
  rates:
    - gpu_hour: 1"#,
        "2:3: prices.rates: has no currency; give prices.currency, such as USD",
    ),
    (
        "prices: {currency: US dollars, rates: [{gpu_hour: 1}]}",
        r#"1:20: prices.currency: "US dollars" is not a currency; give a code such as USD or EUR"#,
    ),
    (
        "prices: {currency: USD, rates: [{gpu_hour: -2.1}]}",
        r#"1:44: prices.rates[0].gpu_hour: "-2.1" is negative; give a number >= 0"#,
    ),
    (
        "prices: {currency: USD, rates: [{gpu_hour: free}]}",
        r#"1:44: prices.rates[0].gpu_hour: "free" is not a decimal number; give digits such as 2.49"#,
    ),
    (
        "prices: {currency: USD, rates: [{gpu_hour: 1e3}]}",
        r#"1:44: prices.rates[0].gpu_hour: "1e3" is not a decimal number; give digits such as 2.49"#,
    ),
    (
        "prices: {currency: USD, rates: [{gpu_hour: 0.1234567891}]}",
        r#"1:44: prices.rates[0].gpu_hour: "0.1234567891" has more than nine decimals; round it to nine"#,
    ),
    (
        "prices: {currency: USD, rates: [{gpu_hour: 1000000000}]}",
        r#"1:44: prices.rates[0].gpu_hour: "1000000000" is 1000000000 or more; give a lower number"#,
    ),
    (
        r#"prices: {currency: USD, rates: [{gpu_hour: "1,50"}]}"#,
        r#"1:44: prices.rates[0].gpu_hour: "1,50" is not a decimal number; give digits such as 2.49"#,
    ),
    (
        "prices: {currency: USD, rates: [{}]}",
        "1:33: prices.rates[0].gpu_hour: is missing; give it, or another price: instance_hour, node_hour or node_price",
    ),
    (
        "billing: {time_zone: Mars/Olympus}",
        r#"1:22: billing.time_zone: "Mars/Olympus" is no time zone that this machine knows; give a name such as Europe/Zurich or UTC"#,
    ),
    (
        "prices: {currency: USD, rates: [{node_hour: 8}]}",
        "1:33: prices.rates[0].gpus: is missing; give the number of GPUs of the node",
    ),
    (
        "prices: {currency: USD, rates: [{node_hour: 8, gpus: 0}]}",
        r#"1:54: prices.rates[0].gpus: "0" is not a number of GPUs; give a number from 1 to 1024"#,
    ),
    (
        "prices: {currency: USD, rates: [{gpu_hour: 1, node_hour: 8, gpus: 8}]}",
        "1:47: prices.rates[0].node_hour: is given beside another price; keep one of the two",
    ),
    (
        "prices: {currency: USD, rates: [{gpu_hour: 1, gpu_share: 0.5}]}",
        "1:47: prices.rates[0].gpu_share: belongs to node_hour; remove it, or give node_hour",
    ),
    (
        "prices: {currency: USD, rates: [{node_hour: 8, gpus: 8, gpu_share: 1.5}]}",
        r#"1:68: prices.rates[0].gpu_share: "1.5" is not a share; give a decimal above 0, and at most 1"#,
    ),
    (
        "prices: {currency: USD, rates: [{instance_hour: 1}]}",
        "1:33: prices.rates[0].mig_profile: is missing; give the profile that instance_hour is for",
    ),
    (
        "prices: {currency: USD, rates: [{gpu_hour: 1, mig_profile: 1g.10gb}]}",
        "1:33: prices.rates[0].instance_hour: is missing; give the price of an instance of mig_profile",
    ),
    (
        "prices: {currency: USD, rates: [{node_price: 9, gpus: 8}]}",
        "1:33: prices.rates[0].years: is missing; give the years for which the node is used",
    ),
    (
        "prices: {currency: USD, rates: [{node_price: 9, gpus: 8, years: 5, residual_value: 10}]}",
        "1:68: prices.rates[0].residual_value: is more than node_price; give at most that",
    ),
    (
        "prices: {currency: USD, rates: [{node_hour: 9, gpus: 8, upfront: 5}]}",
        "1:33: prices.rates[0].term_years: is missing; give the years of the commitment",
    ),
    (
        "prices: {currency: USD, rates: [{gpu_hour: 1}], energy: {kwh: 0.2, pue: 0.9}}",
        r#"1:73: prices.energy.pue: "0.9" is not a PUE; give a decimal from 1 to 5"#,
    ),
    (
        "prices: {currency: USD, rates: [{gpu_hour: 1}], energy: {pue: 1.2}}",
        "1:58: prices.energy.pue: belongs to prices.energy.kwh; give it, or remove this",
    ),
    (
        "prices: {energy: {kwh: 0.2}}",
        "1:19: prices.energy.kwh: has no rates beside it; give prices.rates, or remove it",
    ),
    (
        "carbon: {source: a study}",
        "1:10: carbon.source: belongs to carbon.grams_per_kwh; give it, or remove this",
    ),
    (
        "attribution:\n  kubernetes:\n    ignore:\n      - {pod: '*'}\n      - {namespace: monitoring, name: x}",
        "4:9: attribution.kubernetes.ignore[0]: stands for every pod; name a namespace or pods, or turn pods off with socket: off
5:33: attribution.kubernetes.ignore[1].name: unknown key; the keys here are namespace, pod",
    ),
    ("terms: [{tenant: ml, discount: 10}]", "1:1: terms: need prices; give prices.rates, or remove them"),
    (
        "prices: {book: example}\nterms: [{tenant: ml, discount: 10%}]",
        r#"2:32: terms[0].discount: "10%" is not a number of percent; give a decimal from 0 to 100, with at most 7 decimals"#,
    ),
    (
        "prices: {book: example}\nterms: [{tenant: __unallocated__}]",
        r#"2:18: terms[0].tenant: "__unallocated__" is a remainder, which has no terms; name a tenant"#,
    ),
    (
        "prices: {book: example}\nterms: [{tenant: ml, basis: used, outside_use: charge}]",
        "2:35: terms[0].outside_use: belongs to basis held; used time includes that use: remove it",
    ),
    (
        "prices: {book: example}\nterms: [{tenant: ml}, {tenant: ml, discount: 5}]",
        "2:24: terms[1].tenant: has terms of the same begin on line 2; keep one, or give another `from`",
    ),
    (
        "prices: {currency: USD, rates: [{gpu_hour: 1, class: reserved}]}",
        r#"1:54: prices.rates[0].class: "reserved" is not known here; give on_demand, spot, committed or owned"#,
    ),
    (
        "prices: {currency: USD, rates: [{gpu_hour: 1, from: 2026-01-01}]}",
        r#"1:53: prices.rates[0].from: "2026-01-01" is not a time in UTC; give a time in UTC such as 2026-01-01T00:00:00Z"#,
    ),
    (
        "prices: {currency: USD, rates: [{gpu_hour: 1, from: 2026-01-01T00:00:00+01:00}]}",
        r#"1:53: prices.rates[0].from: "2026-01-01T00:00:00+01:00" is not a time in UTC; give a time in UTC such as 2026-01-01T00:00:00Z"#,
    ),
    (
        "prices: {currency: USD, rates: [{gpu_hour: 1, from: 2026-01-01T00:07:00Z}]}",
        r#"1:53: prices.rates[0].from: "2026-01-01T00:07:00Z" is not on the 15-minute grid; give minutes :00, :15, :30 or :45 and no seconds"#,
    ),
    (
        "prices: {currency: USD, rates: [{gpu_hour: 1, from: 1969-12-31T00:00:00Z}]}",
        r#"1:53: prices.rates[0].from: "1969-12-31T00:00:00Z" is before 1970 or out of range; give a time in UTC such as 2026-01-01T00:00:00Z"#,
    ),
    (
        r#"prices:
  currency: USD
  rates:
    - gpu_hour: 1
    - gpu_hour: 2"#,
        "5:7: prices.rates[1].from: has no beginning, nor has the rate on line 4, for the same GPUs; give one of them a time",
    ),
    (
        r#"prices:
  currency: USD
  rates:
    - {gpu_hour: 1, from: 2026-01-01T00:00:00Z}
    - {gpu_hour: 2, from: 2026-01-01T00:00:00Z}"#,
        "5:21: prices.rates[1].from: begins with the rate on line 4, for the same GPUs; give one of them another time",
    ),
    (
        "ledger: {path: ledger.db}",
        r#"1:16: ledger.path: "ledger.db" is not an absolute path; give a path that begins with /"#,
    ),
    (
        r#"otlp: {destinations: [{protocol: grpc}]}"#,
        "1:23: otlp.destinations[0].endpoint: is missing; give http://host:port or https://host",
    ),
    (
        r#"otlp: {destinations: [{endpoint: "http://c:4318", protocol: http/json}]}"#,
        r#"1:61: otlp.destinations[0].protocol: "http/json" is not known here; give http/protobuf or grpc"#,
    ),
    (
        r#"otlp: {destinations: [{endpoint: "http://c:4318", ca_file: /ca.crt}]}"#,
        "1:51: otlp.destinations[0].ca_file: has no effect on an http address; give https:// in endpoint, or remove it",
    ),
    (
        r#"otlp: {destinations: [{endpoint: "https://c", cert_file: /c.crt}]}"#,
        "1:47: otlp.destinations[0].cert_file: and key_file belong together; give both, or remove the other",
    ),
    (
        r#"otlp: {destinations: [{endpoint: "https://c", headers: {Host: c}}]}"#,
        r#"1:63: otlp.destinations[0].headers.Host: "Host" is a header that the agent sets itself; give a name such as Authorization"#,
    ),
    (
        r#"otlp: {destinations: [{endpoint: "https://c"}, {endpoint: "https://c:443"}]}"#,
        "1:49: otlp.destinations[1].endpoint: is that of the entry on line 1 too; keep one",
    ),
    (
        r#"otlp: {endpoint: "c:4318"}"#,
        r#"1:18: otlp.endpoint: "c:4318" does not begin with http:// or https://; give http://host:port, such as http://127.0.0.1:4318"#,
    ),
    (
        r#"otlp: {endpoint: "http://c"}"#,
        r#"1:18: otlp.endpoint: "http://c" has no port; give http://host:port, such as http://127.0.0.1:4318"#,
    ),
    (
        r#"otlp: {endpoint: "http://c:4318/?a=b"}"#,
        r#"1:18: otlp.endpoint: "http://c:4318/?a=b" goes on after the path; give http://host:port, such as http://127.0.0.1:4318"#,
    ),
    (
        r#"otlp: {endpoint: "http://u:p@c:4318"}"#,
        "1:18: otlp.endpoint: carries a user or a password, which has no place here; give http://host:port, such as http://127.0.0.1:4318",
    ),
    (
        r#"otlp: {endpoint: "http://:4318"}"#,
        r#"1:18: otlp.endpoint: "http://:4318" has no host; give http://host:port, such as http://127.0.0.1:4318"#,
    ),
    (
        r#"otlp: {endpoint: "http://c:0"}"#,
        r#"1:18: otlp.endpoint: "http://c:0" has no port; give http://host:port, such as http://127.0.0.1:4318"#,
    ),
    (
        r#"otlp: {endpoint: "nowhere at all"}"#,
        r#"1:18: otlp.endpoint: "nowhere at all" is not a URL; give http://host:port, such as http://127.0.0.1:4318"#,
    ),
    (
        r#"sampling: {interval: 2s}
otlp: {interval: 15s}"#,
        "2:8: otlp.interval: 15s is not a multiple of sampling.interval, 2s on line 1; give a multiple such as 14s",
    ),
    (
        r#"sampling: {interval: 2s}
otlp: {endpoint: "http://c:4318"}"#,
        "1:12: otlp.interval: 15s by default is not a multiple of sampling.interval, 2s; give a multiple such as 14s",
    ),
    (
        "otlp: {interval: 500ms}",
        "1:8: otlp.interval: 500ms is not a multiple of sampling.interval, 1s; give a multiple such as 1s",
    ),
    (
        "limits: {processes: many}",
        r#"1:21: limits.processes: "many" is not a whole number; give a whole number from 0 to 10000"#,
    ),
    (
        "limits: {processes: -1}",
        r#"1:21: limits.processes: "-1" is too small; give a whole number from 0 to 10000"#,
    ),
    (
        "limits: {processes: 20000}",
        r#"1:21: limits.processes: "20000" is too large; give a whole number from 0 to 10000"#,
    ),
    (
        "limits: {processes: 1.5}",
        r#"1:21: limits.processes: "1.5" is not a whole number; give a whole number from 0 to 10000"#,
    ),
    (
        "limits: {birth_delay: 1h}",
        r#"1:23: limits.birth_delay: "1h" is longer than 10m; give a duration from 0s to 10m"#,
    ),
    (
        "web: {external_url: node7.example/gpus}",
        r#"1:21: web.external_url: "node7.example/gpus" is not a URL; give a URL such as https://gpu-node-7.example.com or http://10.0.0.7:9855/gpumeter"#,
    ),
    (
        "web: {external_url: \"https://ops:secret@node7.example\"}",
        "1:21: web.external_url: carries a user or a password, which has no place here; give a URL such as https://gpu-node-7.example.com or http://10.0.0.7:9855/gpumeter",
    ),
    (
        "web: {external_url: \"https://node7.example/?a=1\"}",
        r#"1:21: web.external_url: "https://node7.example/?a=1" goes on after the path; give a URL such as https://gpu-node-7.example.com or http://10.0.0.7:9855/gpumeter"#,
    ),
    (
        "web: {listen: 9855}",
        r#"1:15: web.listen: "9855" is not an IP address with a port; give IP:port, such as 127.0.0.1:9855, or ":9855" for all interfaces"#,
    ),
    (
        "web: {listen: :x}",
        r#"1:15: web.listen: ":x" is not an IP address with a port; give IP:port, such as 127.0.0.1:9855, or ":9855" for all interfaces"#,
    ),
    (
        "web: {listen: []}",
        "1:15: web.listen: is an empty list; give IP:port or unix:/path, or a list of them, or remove the key",
    ),
    (
        "web: {listen: [some-host:9855, 127.0.0.1:1, 127.0.0.1:1]}",
        r#"1:16: web.listen[0]: "some-host:9855" is not an IP address with a port; give IP:port, such as 127.0.0.1:9855, or ":9855" for all interfaces
1:45: web.listen[2]: "127.0.0.1:1" is in the list twice; keep one"#,
    ),
    (
        "web: {listen: [[a]]}",
        "1:16: web.listen[0]: is a list; give IP:port or unix:/path, or a list of them, or remove the key",
    ),
    (
        "web: {listen: \"unix:web.sock\"}",
        r#"1:15: web.listen: "unix:web.sock" has no absolute path; give unix:/path, such as unix:/run/gpumeter/web.sock"#,
    ),
    (
        "web: {tenants: {}}",
        "1:7: web.tenants: names nobody, and so would show every tenant to every user; name each user with the tenants that he sees, or remove the key",
    ),
    (
        "web:\n  tenants:\n    # alice: team-a\n",
        "2:3: web.tenants: names nobody, and so would show every tenant to every user; name each user with the tenants that he sees, or remove the key",
    ),
    (
        "web: {users: [alice]}",
        "1:14: web.users: is not a mapping; give a mapping of users with files, or remove the key",
    ),
    (
        "web: {users: {alice: hash, \"a:b\": /x, bob: /y, bob: /z, eve: }}",
        r#"1:22: web.users.alice: "hash" is not an absolute path; give a path that begins with /
1:35: web.users.a:b: "a:b" is not a user's name; give one without a colon
1:48: web.users.bob: is given twice; keep one
1:60: web.users.eve: has no plain value; give one, or remove the entry"#,
    ),
    (
        "web: {headers: {X-Frame-Options: none, Server: x}}",
        r#"1:34: web.headers.X-Frame-Options: "none" is not a value of this header; give deny or sameorigin
1:48: web.headers.Server: "Server" is not a header that can be set; give some of Strict-Transport-Security, X-Content-Type-Options, X-Frame-Options, X-XSS-Protection, Content-Security-Policy"#,
    ),
    (
        "web: {tls: {client_auth_type: RequireAndVerifyClientCert}}",
        "1:13: web.tls.cert_file: is missing; give the server's certificate, or remove the other keys\n\
         1:13: web.tls.key_file: is missing; give the private key of the server's certificate",
    ),
    (
        "web: {tls: {cert_file: /x, min_version: TLS13, max_version: TLS12}}",
        "1:13: web.tls.key_file: is missing; give the private key of the server's certificate\n\
         1:28: web.tls.min_version: is newer than max_version; give an older version",
    ),
    (
        "web: {tls: {client_auth_type: always, curve_preferences: [CurveP521]}}",
        r#"1:31: web.tls.client_auth_type: "always" is not a policy for client certificates; give NoClientCert, RequestClientCert, RequireAnyClientCert, VerifyClientCertIfGiven or RequireAndVerifyClientCert
1:59: web.tls.curve_preferences[0]: "CurveP521" is not a curve that this agent has; give some of X25519, CurveP256, CurveP384"#,
    ),
];

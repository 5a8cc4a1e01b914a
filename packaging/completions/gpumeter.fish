# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_gpumeter_global_optspecs
    string join \n log-format= h/help
end

function __fish_gpumeter_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_gpumeter_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_gpumeter_using_subcommand
    set -l cmd (__fish_gpumeter_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c gpumeter -n "__fish_gpumeter_needs_command" -l log-format -d 'Format of the log' -r -f -a "text\t''
json\t''"
complete -c gpumeter -n "__fish_gpumeter_needs_command" -s h -l help -d 'Print help'
complete -c gpumeter -n "__fish_gpumeter_needs_command" -f -a "run" -d 'Run the agent: sample, attribute, keep the ledger, serve and push'
complete -c gpumeter -n "__fish_gpumeter_needs_command" -f -a "demo" -d 'Run the agent on a simulated node; needs no GPU'
complete -c gpumeter -n "__fish_gpumeter_needs_command" -f -a "fleet" -d 'Serve what all nodes of a fleet cost, from a directory of their exports: page, bills and API'
complete -c gpumeter -n "__fish_gpumeter_needs_command" -f -a "top" -d 'Show the node live: GPUs, MIG instances, processes, tenants, workloads, and what needs attention'
complete -c gpumeter -n "__fish_gpumeter_needs_command" -f -a "bill" -d 'Print the bill of a running agent, or of a ledger file that no agent is using'
complete -c gpumeter -n "__fish_gpumeter_needs_command" -f -a "job" -d 'Print what a Slurm job held, used and cost on this node'
complete -c gpumeter -n "__fish_gpumeter_needs_command" -f -a "explain" -d 'Explain a line of a bill, a job, a pod or a GPU: who held what from when to when, at which rate, by which rule'
complete -c gpumeter -n "__fish_gpumeter_needs_command" -f -a "advise" -d 'Say what tenants may change to spend less, with the evidence; say nothing where it is not sure'
complete -c gpumeter -n "__fish_gpumeter_needs_command" -f -a "fit" -d 'Say whether workloads would have fitted together on one GPU or instance, from their past'
complete -c gpumeter -n "__fish_gpumeter_needs_command" -f -a "demand" -d 'Say how many GPUs were held, used and free by hour of the week, and what the next week may be like'
complete -c gpumeter -n "__fish_gpumeter_needs_command" -f -a "statement" -d 'Close a month with a document that never changes, show and verify such documents, and give credits'
complete -c gpumeter -n "__fish_gpumeter_needs_command" -f -a "metrics" -d 'Print every metric with its meaning'
complete -c gpumeter -n "__fish_gpumeter_needs_command" -f -a "check-config" -d 'Check a configuration file and report every problem'
complete -c gpumeter -n "__fish_gpumeter_needs_command" -f -a "record" -d 'Record the answers of this node\'s driver to a file that gpumeter replay can play anywhere'
complete -c gpumeter -n "__fish_gpumeter_needs_command" -f -a "replay" -d 'Run the agent on a recording instead of a driver'
complete -c gpumeter -n "__fish_gpumeter_needs_command" -f -a "doctor" -d 'Report what works on this node, what does not, and why'
complete -c gpumeter -n "__fish_gpumeter_needs_command" -f -a "health" -d 'Report the health of each GPU and what to do about it'
complete -c gpumeter -n "__fish_gpumeter_needs_command" -f -a "quiesce" -d 'Release the driver, so that GPUs can be reset or repartitioned (MIG) or the driver upgraded'
complete -c gpumeter -n "__fish_gpumeter_needs_command" -f -a "resume" -d 'Use the driver again after gpumeter quiesce'
complete -c gpumeter -n "__fish_gpumeter_needs_command" -f -a "inventory" -d 'List the GPUs that this node is expected to have, with state and since when'
complete -c gpumeter -n "__fish_gpumeter_needs_command" -f -a "probe" -d 'Ask the agent of this node whether it is healthy, for the exec probe of a container'
complete -c gpumeter -n "__fish_gpumeter_needs_command" -f -a "ledger" -d 'Copy the ledger, shrink it, or restore what an upgrade saved'
complete -c gpumeter -n "__fish_gpumeter_needs_command" -f -a "completion" -d 'Print the completions of a shell, to be loaded by it'
complete -c gpumeter -n "__fish_gpumeter_needs_command" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand run" -l config -d 'Configuration file; without one the defaults apply' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand run" -l listen -l web.listen-address -d 'Address to serve on, instead of the configured ones; may be repeated' -r
complete -c gpumeter -n "__fish_gpumeter_using_subcommand run" -l web.config.file -d 'Web configuration file: TLS, users, headers and rate limit in the form of Prometheus\' exporters' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand run" -l dcgm-listen -d 'Address where /metrics has dcgm-exporter\'s names, instead of web.dcgm_listen; may be repeated' -r
complete -c gpumeter -n "__fish_gpumeter_using_subcommand run" -l nvml-library -d 'Path of the driver library (libnvidia-ml.so.1), instead of the one that the loader finds' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand run" -l log-format -d 'Format of the log' -r -f -a "text\t''
json\t''"
complete -c gpumeter -n "__fish_gpumeter_using_subcommand run" -l web.systemd-socket -d 'Serve on the sockets of the service\'s systemd socket unit; without one, on the configured addresses'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand run" -l print-default-config -d 'Print the default configuration with every key explained, and exit'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand run" -s h -l help -d 'Print help'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand demo" -l scenario -d 'Built-in scenario (cluster; node, without schedulers; local, with real processes), or the path of a file' -r
complete -c gpumeter -n "__fish_gpumeter_using_subcommand demo" -l listen -l web.listen-address -d 'Address to serve on, instead of web.listen or 127.0.0.1:9855; may be repeated' -r
complete -c gpumeter -n "__fish_gpumeter_using_subcommand demo" -l speed -d 'How many times faster than real time' -r
complete -c gpumeter -n "__fish_gpumeter_using_subcommand demo" -l state-dir -d 'Directory of the demo, instead of $XDG_STATE_HOME/gpumeter/demo: new, empty, or of an earlier demo' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand demo" -l config -d 'Configuration file, instead of the scenario\'s. For the default web.listen the demo uses 127.0.0.1:9855, for the default web.control control.sock in its directory; a ledger.path outside its directory is refused' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand demo" -l otlp-endpoint -d 'Push over OTLP/HTTP to this address, e.g. http://localhost:4318; by default nothing is pushed' -r
complete -c gpumeter -n "__fish_gpumeter_using_subcommand demo" -l history -d 'Begin with a past of so many days, such as 60d, in a new ledger and in exports, as the scenario describes it' -r
complete -c gpumeter -n "__fish_gpumeter_using_subcommand demo" -l nodes -d 'How many nodes have that past; the demo runs on the first, and the others have ledgers in DIR/nodes' -r
complete -c gpumeter -n "__fish_gpumeter_using_subcommand demo" -l seed -d 'Number from which all that looks random in the past follows, and the UUIDs of GPUs; by default the scenario\'s' -r
complete -c gpumeter -n "__fish_gpumeter_using_subcommand demo" -l web.config.file -d 'Web configuration file: TLS, users, headers and rate limit in the form of Prometheus\' exporters' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand demo" -l dcgm-listen -d 'Address where /metrics has dcgm-exporter\'s names, instead of web.dcgm_listen; may be repeated' -r
complete -c gpumeter -n "__fish_gpumeter_using_subcommand demo" -l log-format -d 'Format of the log' -r -f -a "text\t''
json\t''"
complete -c gpumeter -n "__fish_gpumeter_using_subcommand demo" -l fresh -d 'Start from scratch: empty the demo\'s directory first'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand demo" -l web.systemd-socket -d 'Serve on the sockets of the service\'s systemd socket unit; without one, on the configured addresses'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand demo" -s h -l help -d 'Print help'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand fleet" -l exports -d 'Directory of exports (ledger.export.directory) of any number of nodes. It is only read' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand fleet" -l statements -d 'Directory of closed statements, beside which their months are shown' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand fleet" -l expect -d 'List of all nodes, as gpumeter bill --expect has it: for advice on nodes that nobody needs, commitments and replicas' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand fleet" -l config -d 'Configuration file, of which web, billing and advice.dismiss are used; without one the defaults apply' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand fleet" -l listen -l web.listen-address -d 'Address to serve on; may be repeated. By default those of web.listen of the configuration file, else 127.0.0.1:9856' -r
complete -c gpumeter -n "__fish_gpumeter_using_subcommand fleet" -l web.config.file -d 'Web configuration file: TLS, users, headers and rate limit in the form of Prometheus\' exporters' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand fleet" -l log-format -d 'Format of the log' -r -f -a "text\t''
json\t''"
complete -c gpumeter -n "__fish_gpumeter_using_subcommand fleet" -s h -l help -d 'Print help'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand top" -l url -d 'URL of the running agent, with the path where a proxy has one for it' -r
complete -c gpumeter -n "__fish_gpumeter_using_subcommand top" -l web.ca-file -d 'CA certificate, as PEM, that verifies the agent\'s certificate, instead of the CAs that this machine trusts' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand top" -l web.cert-file -d 'Client certificate with its private key in one PEM file' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand top" -l web.user -d 'User name, if the agent has web.users' -r
complete -c gpumeter -n "__fish_gpumeter_using_subcommand top" -l web.password-file -d 'File with the password of that user' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand top" -l config -d 'Configuration file for its own look: grants, prices, resolvers' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand top" -l nvml-library -d 'Path of the driver library (libnvidia-ml.so.1) for its own look, instead of the one that the loader finds' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand top" -l log-format -d 'Format of the log' -r -f -a "text\t''
json\t''"
complete -c gpumeter -n "__fish_gpumeter_using_subcommand top" -l once -d 'Print the node once, as text, and end'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand top" -l own -d 'Look at the GPUs itself instead of asking an agent; done by itself where no agent answers at the default URL'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand top" -s h -l help -d 'Print help'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand bill" -l url -d 'URL of the running agent, with the path where a proxy has one for it' -r
complete -c gpumeter -n "__fish_gpumeter_using_subcommand bill" -l web.ca-file -d 'CA certificate, as PEM, that verifies the agent\'s certificate, instead of the CAs that this machine trusts' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand bill" -l web.cert-file -d 'Client certificate with its private key in one PEM file' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand bill" -l web.user -d 'User name, if the agent has web.users' -r
complete -c gpumeter -n "__fish_gpumeter_using_subcommand bill" -l web.password-file -d 'File with the password of that user' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand bill" -l ledger -d 'A ledger file that no agent is using, instead of a running agent' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand bill" -l exports -d 'A directory of exports (ledger.export.directory) of any number of nodes, instead of a running agent' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand bill" -l expect -d 'With --exports, a CSV file of the nodes that should be in it: node,from,to and possibly gpus,model. What they did not report is __unobserved__' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand bill" -l time-zone -d 'Time zone of dates and months, such as Europe/Zurich; by default billing.time_zone of the agent, else that of the machine that makes the bill' -r
complete -c gpumeter -n "__fish_gpumeter_using_subcommand bill" -l from -d 'Start of the period: a date, which means 00:00 in --time-zone, or a time such as 2026-11-01T08:00:00Z; by default the start of the month in which the period ends' -r
complete -c gpumeter -n "__fish_gpumeter_using_subcommand bill" -l to -d 'End of the period, not included: a date, which means 00:00, or a time; by default the end of the last complete minute' -r
complete -c gpumeter -n "__fish_gpumeter_using_subcommand bill" -l month -d 'A whole month in --time-zone, such as 2026-11, instead of --from and --to' -r
complete -c gpumeter -n "__fish_gpumeter_using_subcommand bill" -l by -d 'What the lines of text and CSV are grouped by: tenant, workload, gpu, model (product name), node, namespace, account, user, unit, uuid, class (price class), day, attribute:NAME (of the tenant), a label of gpu_workload_info such as k8s_pod_name, or two of these such as tenant,gpu. Usage without that label is in the line "-"' -r
complete -c gpumeter -n "__fish_gpumeter_using_subcommand bill" -l tenant -d 'Only the lines of this tenant; may be given several times' -r
complete -c gpumeter -n "__fish_gpumeter_using_subcommand bill" -l only -d 'Only the lines that have this value of a property of --by, such as node=n1; may be given several times, and of one property any of the values counts' -r
complete -c gpumeter -n "__fish_gpumeter_using_subcommand bill" -l spread -d 'Divide the money of unheld time among the tenants by charged time, in a column of its own; or that of these remainders, with commas between them' -r -f -a "__unallocated__\t''
__stranded__\t''
__unavailable__\t''
__unobserved__\t''
__system__\t''
__unattributed__\t''
__terms__\t''
__rate_variance__\t''"
complete -c gpumeter -n "__fish_gpumeter_using_subcommand bill" -l compare -d 'Compare with another period: a month such as 2026-10, or FROM..TO' -r
complete -c gpumeter -n "__fish_gpumeter_using_subcommand bill" -l split-by -d 'Write one HTML file for each tenant, or other group, into a directory' -r
complete -c gpumeter -n "__fish_gpumeter_using_subcommand bill" -l book -d 'Prices and terms of a configuration file in place of the recorded ones. A running agent or the server of a fleet gets them, bills once with them, and keeps nothing' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand bill" -l columns -d 'Columns of the table in this order, with commas between them, such as amount,held,lent; a name of an amount in the table or in CSV, or an attribute of tenants. By default text has all that are not zero, and HTML as many as a printed page has room for' -r
complete -c gpumeter -n "__fish_gpumeter_using_subcommand bill" -l against -d 'Compare with what sacct --parsable2 printed to this file, by job, instead of printing the bill. Exit status 1 if any job differs. It needs the columns JobID, Elapsed (or ElapsedRaw) and AllocTRES, and uses JobIDRaw, Cluster, Account, User, Start, End, Suspended, NodeList and NNodes; with --duplicates it has all runs of requeued jobs' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand bill" -l tolerance -d 'Difference that is accepted for each GPU of a job, in seconds: a job holds its GPUs from prolog to epilog' -r
complete -c gpumeter -n "__fish_gpumeter_using_subcommand bill" -l focus -d 'Write the rows of FOCUS 1.3, one for each local day, tenant, workload, GPU slot and rate, into a file that ends in .csv or .parquet; - is CSV to standard output' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand bill" -l billing-account -d 'BillingAccountId and BillingAccountName of FOCUS, instead of billing.account of the agent' -r
complete -c gpumeter -n "__fish_gpumeter_using_subcommand bill" -l invoice-issuer -d 'InvoiceIssuerName and the providers of FOCUS, instead of billing.invoice_issuer of the agent' -r
complete -c gpumeter -n "__fish_gpumeter_using_subcommand bill" -l log-format -d 'Format of the log' -r -f -a "text\t''
json\t''"
complete -c gpumeter -n "__fish_gpumeter_using_subcommand bill" -l skip-damaged -d 'With --exports, leave damaged files out; the bill names them'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand bill" -l compare-book -d 'With --book, what each group of --by costs by the recorded prices and by those of the book, and the difference'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand bill" -l csv -d 'Print CSV: one line per group of --by and rate, with an id that explain takes and that stays the same while a month grows. A text that begins with =, +, - or @ has an apostrophe before it, so that no spreadsheet reads it as a formula; names are shown as in the table'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand bill" -l html -d 'Print one HTML file to send on, with plots: it has no script and loads nothing'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand bill" -l json -d 'Print JSON: one line per tenant, holder and GPU, exact, in nanoseconds; an array of bills where prices changed their currency'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand bill" -l over-budget -d 'List the tenants that cost more in --month, or in this month so far, than their budget (tenants.budgets), and exit with status 1 if there are any'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand bill" -s h -l help -d 'Print help'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand job" -l user -d 'List the jobs of that user of Slurm' -r
complete -c gpumeter -n "__fish_gpumeter_using_subcommand job" -l slurm-account -d 'List the jobs of that account of Slurm' -r
complete -c gpumeter -n "__fish_gpumeter_using_subcommand job" -l sum -d 'Add up what the nodes of one job printed with --json, each file from another node' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand job" -l web.ca-file -d 'CA certificate, as PEM, that verifies the agent\'s certificate, instead of the CAs that this machine trusts' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand job" -l web.cert-file -d 'Client certificate with its private key in one PEM file' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand job" -l web.user -d 'User name, if the agent has web.users' -r
complete -c gpumeter -n "__fish_gpumeter_using_subcommand job" -l web.password-file -d 'File with the password of that user' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand job" -l ledger -d 'A ledger file that no agent is using, instead of a running agent' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand job" -l exports -d 'A directory of exports (ledger.export.directory) of any number of nodes, instead of a running agent' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand job" -l expect -d 'With --exports, a CSV file of the nodes that should be in it: node,from,to and possibly gpus,model. What they did not report is __unobserved__' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand job" -l time-zone -d 'Time zone of dates and months, such as Europe/Zurich; by default billing.time_zone of the agent, else that of the machine that makes the bill' -r
complete -c gpumeter -n "__fish_gpumeter_using_subcommand job" -l cluster -d 'Cluster of the job, if several clusters had a job with this id' -r
complete -c gpumeter -n "__fish_gpumeter_using_subcommand job" -l last -d 'How much is searched before the end, such as 12h or 7d; by default 30d' -r
complete -c gpumeter -n "__fish_gpumeter_using_subcommand job" -l from -d 'Start of the searched period, a date or a time as for gpumeter bill' -r
complete -c gpumeter -n "__fish_gpumeter_using_subcommand job" -l to -d 'End of the searched period, not included; by default the end of the last complete minute' -r
complete -c gpumeter -n "__fish_gpumeter_using_subcommand job" -l url -d 'URL of the running agent, or of the server of a fleet, with the path where a proxy has one for it; by default $GPUMETER_URL' -r
complete -c gpumeter -n "__fish_gpumeter_using_subcommand job" -l log-format -d 'Format of the log' -r -f -a "text\t''
json\t''"
complete -c gpumeter -n "__fish_gpumeter_using_subcommand job" -l raw -d 'The number is that of one job, as in SLURM_JOB_ID, also where an array has the same'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand job" -l skip-damaged -d 'With --exports, leave damaged files out; the bill names them'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand job" -l json -d 'Print JSON, exact: times in nanoseconds, energy in microjoules'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand job" -l brief -d 'Leave the lines of the bill out of the JSON'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand job" -s h -l help -d 'Print help'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand explain" -l tenant -d 'What a tenant costs as a whole: how much of what, at which rates and terms. Beside a day, on that day; beside a job, a pod, a GPU or a workload, only the lines of this tenant' -r
complete -c gpumeter -n "__fish_gpumeter_using_subcommand explain" -l url -d 'URL of the running agent, with the path where a proxy has one for it' -r
complete -c gpumeter -n "__fish_gpumeter_using_subcommand explain" -l web.ca-file -d 'CA certificate, as PEM, that verifies the agent\'s certificate, instead of the CAs that this machine trusts' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand explain" -l web.cert-file -d 'Client certificate with its private key in one PEM file' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand explain" -l web.user -d 'User name, if the agent has web.users' -r
complete -c gpumeter -n "__fish_gpumeter_using_subcommand explain" -l web.password-file -d 'File with the password of that user' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand explain" -l ledger -d 'A ledger file that no agent is using, instead of a running agent' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand explain" -l exports -d 'A directory of exports (ledger.export.directory) of any number of nodes, instead of a running agent' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand explain" -l expect -d 'With --exports, a CSV file of the nodes that should be in it: node,from,to and possibly gpus,model. What they did not report is __unobserved__' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand explain" -l time-zone -d 'Time zone of dates and months, such as Europe/Zurich; by default billing.time_zone of the agent, else that of the machine that makes the bill' -r
complete -c gpumeter -n "__fish_gpumeter_using_subcommand explain" -l cluster -d 'Cluster of the job, if several clusters had a job with this id' -r
complete -c gpumeter -n "__fish_gpumeter_using_subcommand explain" -l from -d 'Start of the period, as for gpumeter bill' -r
complete -c gpumeter -n "__fish_gpumeter_using_subcommand explain" -l to -d 'End of the period, as for gpumeter bill; that of the bill, if a line is explained' -r
complete -c gpumeter -n "__fish_gpumeter_using_subcommand explain" -l month -d 'A whole month, such as 2026-11, instead of --from and --to' -r
complete -c gpumeter -n "__fish_gpumeter_using_subcommand explain" -l log-format -d 'Format of the log' -r -f -a "text\t''
json\t''"
complete -c gpumeter -n "__fish_gpumeter_using_subcommand explain" -l skip-damaged -d 'With --exports, leave damaged files out; the bill names them'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand explain" -l names -d 'Also print labels that name a person: user_name and slurm_user. Tenants and workloads of users are named anyway'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand explain" -l json -d 'Print JSON, exact: each line with its minutes, rates and rules'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand explain" -s h -l help -d 'Print help'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand advise" -l url -d 'URL of the running agent, with the path where a proxy has one for it' -r
complete -c gpumeter -n "__fish_gpumeter_using_subcommand advise" -l web.ca-file -d 'CA certificate, as PEM, that verifies the agent\'s certificate, instead of the CAs that this machine trusts' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand advise" -l web.cert-file -d 'Client certificate with its private key in one PEM file' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand advise" -l web.user -d 'User name, if the agent has web.users' -r
complete -c gpumeter -n "__fish_gpumeter_using_subcommand advise" -l web.password-file -d 'File with the password of that user' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand advise" -l ledger -d 'A ledger file that no agent is using, instead of a running agent' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand advise" -l exports -d 'A directory of exports (ledger.export.directory) of any number of nodes, instead of a running agent' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand advise" -l expect -d 'With --exports, a CSV file of the nodes that should be in it: node,from,to and possibly gpus,model. What they did not report is __unobserved__' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand advise" -l time-zone -d 'Time zone of dates and months, such as Europe/Zurich; by default billing.time_zone of the agent, else that of the machine that makes the bill' -r
complete -c gpumeter -n "__fish_gpumeter_using_subcommand advise" -l tenant -d 'Only findings about this tenant' -r
complete -c gpumeter -n "__fish_gpumeter_using_subcommand advise" -l explain -d 'Only the finding with this id, with the times that it is made of, each with its seconds, rate and money' -r
complete -c gpumeter -n "__fish_gpumeter_using_subcommand advise" -l config -d 'Configuration file whose advice.dismiss is used; a running agent uses its own' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand advise" -l log-format -d 'Format of the log' -r -f -a "text\t''
json\t''"
complete -c gpumeter -n "__fish_gpumeter_using_subcommand advise" -l skip-damaged -d 'With --exports, leave damaged files out; the bill names them'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand advise" -l json -d 'Print JSON, exact: times in nanoseconds'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand advise" -s h -l help -d 'Print help'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand fit" -l url -d 'URL of the running agent, with the path where a proxy has one for it' -r
complete -c gpumeter -n "__fish_gpumeter_using_subcommand fit" -l web.ca-file -d 'CA certificate, as PEM, that verifies the agent\'s certificate, instead of the CAs that this machine trusts' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand fit" -l web.cert-file -d 'Client certificate with its private key in one PEM file' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand fit" -l web.user -d 'User name, if the agent has web.users' -r
complete -c gpumeter -n "__fish_gpumeter_using_subcommand fit" -l web.password-file -d 'File with the password of that user' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand fit" -l ledger -d 'A ledger file that no agent is using, instead of a running agent' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand fit" -l exports -d 'A directory of exports (ledger.export.directory) of any number of nodes, instead of a running agent' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand fit" -l expect -d 'With --exports, a CSV file of the nodes that should be in it: node,from,to and possibly gpus,model. What they did not report is __unobserved__' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand fit" -l time-zone -d 'Time zone of dates and months, such as Europe/Zurich; by default billing.time_zone of the agent, else that of the machine that makes the bill' -r
complete -c gpumeter -n "__fish_gpumeter_using_subcommand fit" -l on -d 'The product name of a GPU, or the profile of an instance such as 1g.10gb; by default a GPU as the one that they held most' -r
complete -c gpumeter -n "__fish_gpumeter_using_subcommand fit" -l log-format -d 'Format of the log' -r -f -a "text\t''
json\t''"
complete -c gpumeter -n "__fish_gpumeter_using_subcommand fit" -l skip-damaged -d 'With --exports, leave damaged files out; the bill names them'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand fit" -l json -d 'Print JSON, exact: times in nanoseconds'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand fit" -s h -l help -d 'Print help'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand demand" -l url -d 'URL of the running agent, with the path where a proxy has one for it' -r
complete -c gpumeter -n "__fish_gpumeter_using_subcommand demand" -l web.ca-file -d 'CA certificate, as PEM, that verifies the agent\'s certificate, instead of the CAs that this machine trusts' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand demand" -l web.cert-file -d 'Client certificate with its private key in one PEM file' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand demand" -l web.user -d 'User name, if the agent has web.users' -r
complete -c gpumeter -n "__fish_gpumeter_using_subcommand demand" -l web.password-file -d 'File with the password of that user' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand demand" -l ledger -d 'A ledger file that no agent is using, instead of a running agent' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand demand" -l exports -d 'A directory of exports (ledger.export.directory) of any number of nodes, instead of a running agent' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand demand" -l expect -d 'With --exports, a CSV file of the nodes that should be in it: node,from,to and possibly gpus,model. What they did not report is __unobserved__' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand demand" -l time-zone -d 'Time zone of dates and months, such as Europe/Zurich; by default billing.time_zone of the agent, else that of the machine that makes the bill' -r
complete -c gpumeter -n "__fish_gpumeter_using_subcommand demand" -l pool -d 'Only the nodes of this pool (node.pool)' -r
complete -c gpumeter -n "__fish_gpumeter_using_subcommand demand" -l log-format -d 'Format of the log' -r -f -a "text\t''
json\t''"
complete -c gpumeter -n "__fish_gpumeter_using_subcommand demand" -l skip-damaged -d 'With --exports, leave damaged files out; the bill names them'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand demand" -l json -d 'Print JSON'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand demand" -s h -l help -d 'Print help'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand statement; and not __fish_seen_subcommand_from close show verify credit help" -l log-format -d 'Format of the log' -r -f -a "text\t''
json\t''"
complete -c gpumeter -n "__fish_gpumeter_using_subcommand statement; and not __fish_seen_subcommand_from close show verify credit help" -s h -l help -d 'Print help'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand statement; and not __fish_seen_subcommand_from close show verify credit help" -f -a "close" -d 'Close a month: its prices and tenants become final, and its bill is written into a document that never changes'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand statement; and not __fish_seen_subcommand_from close show verify credit help" -f -a "show" -d 'Print a statement, a credit or an excerpt, as it was closed; or make the excerpt of one tenant, or of each'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand statement; and not __fish_seen_subcommand_from close show verify credit help" -f -a "verify" -d 'Check that documents are as they were written, that their sums follow from their lines, that they are one chain, and that excerpts stand in the statements that are given too; exit with status 1 if not'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand statement; and not __fish_seen_subcommand_from close show verify credit help" -f -a "credit" -d 'Give a tenant an amount of a statement back; it stands below the total of the next statement'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand statement; and not __fish_seen_subcommand_from close show verify credit help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand statement; and __fish_seen_subcommand_from close" -l month -d 'The month in --time-zone, such as 2026-10' -r
complete -c gpumeter -n "__fish_gpumeter_using_subcommand statement; and __fish_seen_subcommand_from close" -l time-zone -d 'Time zone of the month, such as Europe/Zurich; by default billing.time_zone of the agent, else that of this machine' -r
complete -c gpumeter -n "__fish_gpumeter_using_subcommand statement; and __fish_seen_subcommand_from close" -l exports -d 'A directory of exports of any number of nodes, instead of one node. Their ledgers are not told, so that late rates stay possible there; the statement stays as it is' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand statement; and __fish_seen_subcommand_from close" -l expect -d 'With --exports, a CSV file of the nodes that should be in it: node,from,to and possibly gpus,model' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand statement; and __fish_seen_subcommand_from close" -l config -d 'Configuration file of the running agent' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand statement; and __fish_seen_subcommand_from close" -l socket -d 'Local socket of the agent, instead of the configured one; that of a demo is control.sock in its directory' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand statement; and __fish_seen_subcommand_from close" -l ledger -d 'A ledger file that no agent is using, instead of the running agent, which is asked over its local socket' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand statement; and __fish_seen_subcommand_from close" -l statements -d 'Directory of the documents' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand statement; and __fish_seen_subcommand_from close" -l closed-by -d 'Who does this, for the document; by default the name of this user' -r
complete -c gpumeter -n "__fish_gpumeter_using_subcommand statement; and __fish_seen_subcommand_from close" -l log-format -d 'Format of the log' -r -f -a "text\t''
json\t''"
complete -c gpumeter -n "__fish_gpumeter_using_subcommand statement; and __fish_seen_subcommand_from close" -l accept-gaps -d 'With --exports, close although nodes did not report, or without a list of nodes'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand statement; and __fish_seen_subcommand_from close" -s h -l help -d 'Print help'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand statement; and __fish_seen_subcommand_from show" -l by -d 'What the lines are grouped by, as in gpumeter bill' -r
complete -c gpumeter -n "__fish_gpumeter_using_subcommand statement; and __fish_seen_subcommand_from show" -l tenant -d 'Print an excerpt: the lines and credits of this tenant, and nothing of others' -r
complete -c gpumeter -n "__fish_gpumeter_using_subcommand statement; and __fish_seen_subcommand_from show" -l split-by -d 'Write the excerpt of each tenant into a directory, as an HTML file and as the JSON file that verify checks. WHAT is tenant, or tenant,attribute:NAME, which adds that attribute to the names of the files and of the list' -r
complete -c gpumeter -n "__fish_gpumeter_using_subcommand statement; and __fish_seen_subcommand_from show" -l columns -d 'Columns of the table, as in gpumeter bill' -r
complete -c gpumeter -n "__fish_gpumeter_using_subcommand statement; and __fish_seen_subcommand_from show" -l log-format -d 'Format of the log' -r -f -a "text\t''
json\t''"
complete -c gpumeter -n "__fish_gpumeter_using_subcommand statement; and __fish_seen_subcommand_from show" -l csv -d 'Print CSV; credits are lines with a negative amount'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand statement; and __fish_seen_subcommand_from show" -l html -d 'Print one HTML file to send on'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand statement; and __fish_seen_subcommand_from show" -l json -d 'Print the document itself'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand statement; and __fish_seen_subcommand_from show" -s h -l help -d 'Print help'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand statement; and __fish_seen_subcommand_from verify" -l ledger -d 'Also check that the ledger of their node recorded these documents, and still has the same account. It must not be in use; of a running agent\'s ledger give a copy (gpumeter ledger snapshot)' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand statement; and __fish_seen_subcommand_from verify" -l exports -d 'Also check that a fleet\'s statements are what these exports add up to' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand statement; and __fish_seen_subcommand_from verify" -l log-format -d 'Format of the log' -r -f -a "text\t''
json\t''"
complete -c gpumeter -n "__fish_gpumeter_using_subcommand statement; and __fish_seen_subcommand_from verify" -s h -l help -d 'Print help'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand statement; and __fish_seen_subcommand_from credit" -l tenant -d 'The tenant' -r
complete -c gpumeter -n "__fish_gpumeter_using_subcommand statement; and __fish_seen_subcommand_from credit" -l amount -d 'The amount in the currency of the statement, such as 12.50' -r
complete -c gpumeter -n "__fish_gpumeter_using_subcommand statement; and __fish_seen_subcommand_from credit" -l reason -d 'Why, in a sentence' -r
complete -c gpumeter -n "__fish_gpumeter_using_subcommand statement; and __fish_seen_subcommand_from credit" -l config -d 'Configuration file of the running agent' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand statement; and __fish_seen_subcommand_from credit" -l socket -d 'Local socket of the agent, instead of the configured one; that of a demo is control.sock in its directory' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand statement; and __fish_seen_subcommand_from credit" -l ledger -d 'A ledger file that no agent is using, instead of the running agent, which is asked over its local socket' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand statement; and __fish_seen_subcommand_from credit" -l statements -d 'Directory of the documents' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand statement; and __fish_seen_subcommand_from credit" -l closed-by -d 'Who does this, for the document; by default the name of this user' -r
complete -c gpumeter -n "__fish_gpumeter_using_subcommand statement; and __fish_seen_subcommand_from credit" -l log-format -d 'Format of the log' -r -f -a "text\t''
json\t''"
complete -c gpumeter -n "__fish_gpumeter_using_subcommand statement; and __fish_seen_subcommand_from credit" -s h -l help -d 'Print help'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand statement; and __fish_seen_subcommand_from help" -f -a "close" -d 'Close a month: its prices and tenants become final, and its bill is written into a document that never changes'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand statement; and __fish_seen_subcommand_from help" -f -a "show" -d 'Print a statement, a credit or an excerpt, as it was closed; or make the excerpt of one tenant, or of each'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand statement; and __fish_seen_subcommand_from help" -f -a "verify" -d 'Check that documents are as they were written, that their sums follow from their lines, that they are one chain, and that excerpts stand in the statements that are given too; exit with status 1 if not'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand statement; and __fish_seen_subcommand_from help" -f -a "credit" -d 'Give a tenant an amount of a statement back; it stands below the total of the next statement'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand statement; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand metrics" -l format -d 'Output format' -r -f -a "text\t''
markdown\t''
json\t''"
complete -c gpumeter -n "__fish_gpumeter_using_subcommand metrics" -l log-format -d 'Format of the log' -r -f -a "text\t''
json\t''"
complete -c gpumeter -n "__fish_gpumeter_using_subcommand metrics" -s h -l help -d 'Print help'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand check-config" -l web.config.file -d 'Web configuration file to check as well' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand check-config" -l log-format -d 'Format of the log' -r -f -a "text\t''
json\t''"
complete -c gpumeter -n "__fish_gpumeter_using_subcommand check-config" -l node -d 'Also read this node\'s certificates and ask its driver: print which rate each GPU and which tenant each workload has, and warn of GPUs without a rate and of grants on GPUs that it does not have'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand check-config" -s h -l help -d 'Print help'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand record" -l for -d 'How long to record' -r
complete -c gpumeter -n "__fish_gpumeter_using_subcommand record" -l interval -d 'Interval between readings of every GPU' -r
complete -c gpumeter -n "__fish_gpumeter_using_subcommand record" -l nvml-library -d 'Path of the driver library (libnvidia-ml.so.1), instead of the one that the loader finds' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand record" -l log-format -d 'Format of the log' -r -f -a "text\t''
json\t''"
complete -c gpumeter -n "__fish_gpumeter_using_subcommand record" -s h -l help -d 'Print help'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand replay" -l listen -l web.listen-address -d 'Address to serve on, instead of web.listen or 127.0.0.1:9855; may be repeated' -r
complete -c gpumeter -n "__fish_gpumeter_using_subcommand replay" -l speed -d 'How many times faster than it was recorded' -r
complete -c gpumeter -n "__fish_gpumeter_using_subcommand replay" -l state-dir -d 'Directory of the replay, instead of $XDG_STATE_HOME/gpumeter/replay: new, empty, or of an earlier demo or replay; it is emptied first' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand replay" -l config -d 'Configuration file with grants and prices, which a recording does not have; otherwise as for gpumeter demo' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand replay" -l log-format -d 'Format of the log' -r -f -a "text\t''
json\t''"
complete -c gpumeter -n "__fish_gpumeter_using_subcommand replay" -s h -l help -d 'Print help'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand doctor" -l config -d 'Configuration file of the agent to examine' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand doctor" -l nvml-library -d 'Path of the driver library (libnvidia-ml.so.1), instead of the one that the loader finds; that of a demo is driver/libnvidia-ml.so.1 in its directory' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand doctor" -l log-format -d 'Format of the log' -r -f -a "text\t''
json\t''"
complete -c gpumeter -n "__fish_gpumeter_using_subcommand doctor" -l json -d 'Print JSON: every metric family of every GPU, with the reason where it is missing'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand doctor" -s h -l help -d 'Print help'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand health" -l url -d 'URL of the running agent, with the path where a proxy has one for it' -r
complete -c gpumeter -n "__fish_gpumeter_using_subcommand health" -l web.ca-file -d 'CA certificate, as PEM, that verifies the agent\'s certificate, instead of the CAs that this machine trusts' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand health" -l web.cert-file -d 'Client certificate with its private key in one PEM file' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand health" -l web.user -d 'User name, if the agent has web.users' -r
complete -c gpumeter -n "__fish_gpumeter_using_subcommand health" -l web.password-file -d 'File with the password of that user' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand health" -l socket -d 'Ask over the agent\'s local socket (for root and the agent\'s user), where no other program can answer, instead of --url; without PATH over the default one' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand health" -l fail-on -d 'Least severe state for which the exit status is 1' -r -f -a "degraded\t''
failed\t''"
complete -c gpumeter -n "__fish_gpumeter_using_subcommand health" -l log-format -d 'Format of the log' -r -f -a "text\t''
json\t''"
complete -c gpumeter -n "__fish_gpumeter_using_subcommand health" -l simulated -d 'Accept the made-up verdicts of a demo or replay; without this they are status 2'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand health" -l json -d 'Print the agent\'s JSON: every reason with its evidence'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand health" -s h -l help -d 'Print help'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand quiesce" -l config -d 'Configuration file of the running agent' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand quiesce" -l socket -d 'Local socket of the agent, instead of the configured one; that of a demo is control.sock in its directory' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand quiesce" -l for -d 'How long the driver stays released at most; then the agent uses it again by itself' -r
complete -c gpumeter -n "__fish_gpumeter_using_subcommand quiesce" -l log-format -d 'Format of the log' -r -f -a "text\t''
json\t''"
complete -c gpumeter -n "__fish_gpumeter_using_subcommand quiesce" -s h -l help -d 'Print help'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand resume" -l config -d 'Configuration file of the running agent' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand resume" -l socket -d 'Local socket of the agent, instead of the configured one; that of a demo is control.sock in its directory' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand resume" -l log-format -d 'Format of the log' -r -f -a "text\t''
json\t''"
complete -c gpumeter -n "__fish_gpumeter_using_subcommand resume" -s h -l help -d 'Print help'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand inventory; and not __fish_seen_subcommand_from forget help" -l config -d 'Configuration file of the running agent' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand inventory; and not __fish_seen_subcommand_from forget help" -l socket -d 'Local socket of the agent, instead of the configured one; that of a demo is control.sock in its directory' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand inventory; and not __fish_seen_subcommand_from forget help" -l ledger -d 'A ledger file that no agent is using, instead of a running agent' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand inventory; and not __fish_seen_subcommand_from forget help" -l log-format -d 'Format of the log' -r -f -a "text\t''
json\t''"
complete -c gpumeter -n "__fish_gpumeter_using_subcommand inventory; and not __fish_seen_subcommand_from forget help" -l json -d 'Print JSON'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand inventory; and not __fish_seen_subcommand_from forget help" -s h -l help -d 'Print help'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand inventory; and not __fish_seen_subcommand_from forget help" -f -a "forget" -d 'Stop expecting an absent GPU: its series end, its account stays in the ledger'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand inventory; and not __fish_seen_subcommand_from forget help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand inventory; and __fish_seen_subcommand_from forget" -l config -d 'Configuration file of the running agent' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand inventory; and __fish_seen_subcommand_from forget" -l socket -d 'Local socket of the agent, instead of the configured one; that of a demo is control.sock in its directory' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand inventory; and __fish_seen_subcommand_from forget" -l ledger -d 'A ledger file that no agent is using, instead of a running agent' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand inventory; and __fish_seen_subcommand_from forget" -l log-format -d 'Format of the log' -r -f -a "text\t''
json\t''"
complete -c gpumeter -n "__fish_gpumeter_using_subcommand inventory; and __fish_seen_subcommand_from forget" -s h -l help -d 'Print help'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand inventory; and __fish_seen_subcommand_from help" -f -a "forget" -d 'Stop expecting an absent GPU: its series end, its account stays in the ledger'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand inventory; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand probe" -l config -d 'Configuration file of the running agent' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand probe" -l socket -d 'Local socket of the agent, instead of the configured one; that of a demo is control.sock in its directory' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand probe" -l log-format -d 'Format of the log' -r -f -a "text\t''
json\t''"
complete -c gpumeter -n "__fish_gpumeter_using_subcommand probe" -l ready -d 'Also require that the agent is ready, which it is from its first snapshot on'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand probe" -s h -l help -d 'Print help'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand ledger; and not __fish_seen_subcommand_from snapshot compact restore help" -l config -d 'Configuration file of the agent whose ledger it is' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand ledger; and not __fish_seen_subcommand_from snapshot compact restore help" -l ledger -d 'Path of the ledger, instead of the configured one' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand ledger; and not __fish_seen_subcommand_from snapshot compact restore help" -l log-format -d 'Format of the log' -r -f -a "text\t''
json\t''"
complete -c gpumeter -n "__fish_gpumeter_using_subcommand ledger; and not __fish_seen_subcommand_from snapshot compact restore help" -s h -l help -d 'Print help'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand ledger; and not __fish_seen_subcommand_from snapshot compact restore help" -f -a "snapshot" -d 'Write a consistent copy of the ledger into a new file, which any sqlite3 opens; the agent may run'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand ledger; and not __fish_seen_subcommand_from snapshot compact restore help" -f -a "compact" -d 'Give the space of deleted rows back to the disk; the agent must not run. It needs as much free space as the ledger takes'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand ledger; and not __fish_seen_subcommand_from snapshot compact restore help" -f -a "restore" -d 'Restore the copy that an upgrade saved as LEDGER.v1, LEDGER.v2 ..., so that an earlier release can use it'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand ledger; and not __fish_seen_subcommand_from snapshot compact restore help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand ledger; and __fish_seen_subcommand_from snapshot" -l config -d 'Configuration file of the agent whose ledger it is' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand ledger; and __fish_seen_subcommand_from snapshot" -l ledger -d 'Path of the ledger, instead of the configured one' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand ledger; and __fish_seen_subcommand_from snapshot" -l log-format -d 'Format of the log' -r -f -a "text\t''
json\t''"
complete -c gpumeter -n "__fish_gpumeter_using_subcommand ledger; and __fish_seen_subcommand_from snapshot" -s h -l help -d 'Print help'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand ledger; and __fish_seen_subcommand_from compact" -l config -d 'Configuration file of the agent whose ledger it is' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand ledger; and __fish_seen_subcommand_from compact" -l ledger -d 'Path of the ledger, instead of the configured one' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand ledger; and __fish_seen_subcommand_from compact" -l log-format -d 'Format of the log' -r -f -a "text\t''
json\t''"
complete -c gpumeter -n "__fish_gpumeter_using_subcommand ledger; and __fish_seen_subcommand_from compact" -s h -l help -d 'Print help'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand ledger; and __fish_seen_subcommand_from restore" -l to -d 'Schema version of the copy; by default the newest one before the current version' -r
complete -c gpumeter -n "__fish_gpumeter_using_subcommand ledger; and __fish_seen_subcommand_from restore" -l config -d 'Configuration file of the agent whose ledger it is' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand ledger; and __fish_seen_subcommand_from restore" -l ledger -d 'Path of the ledger, instead of the configured one' -r -F
complete -c gpumeter -n "__fish_gpumeter_using_subcommand ledger; and __fish_seen_subcommand_from restore" -l log-format -d 'Format of the log' -r -f -a "text\t''
json\t''"
complete -c gpumeter -n "__fish_gpumeter_using_subcommand ledger; and __fish_seen_subcommand_from restore" -s h -l help -d 'Print help'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand ledger; and __fish_seen_subcommand_from help" -f -a "snapshot" -d 'Write a consistent copy of the ledger into a new file, which any sqlite3 opens; the agent may run'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand ledger; and __fish_seen_subcommand_from help" -f -a "compact" -d 'Give the space of deleted rows back to the disk; the agent must not run. It needs as much free space as the ledger takes'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand ledger; and __fish_seen_subcommand_from help" -f -a "restore" -d 'Restore the copy that an upgrade saved as LEDGER.v1, LEDGER.v2 ..., so that an earlier release can use it'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand ledger; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand completion" -l log-format -d 'Format of the log' -r -f -a "text\t''
json\t''"
complete -c gpumeter -n "__fish_gpumeter_using_subcommand completion" -s h -l help -d 'Print help'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand help; and not __fish_seen_subcommand_from run demo fleet top bill job explain advise fit demand statement metrics check-config record replay doctor health quiesce resume inventory probe ledger completion help" -f -a "run" -d 'Run the agent: sample, attribute, keep the ledger, serve and push'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand help; and not __fish_seen_subcommand_from run demo fleet top bill job explain advise fit demand statement metrics check-config record replay doctor health quiesce resume inventory probe ledger completion help" -f -a "demo" -d 'Run the agent on a simulated node; needs no GPU'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand help; and not __fish_seen_subcommand_from run demo fleet top bill job explain advise fit demand statement metrics check-config record replay doctor health quiesce resume inventory probe ledger completion help" -f -a "fleet" -d 'Serve what all nodes of a fleet cost, from a directory of their exports: page, bills and API'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand help; and not __fish_seen_subcommand_from run demo fleet top bill job explain advise fit demand statement metrics check-config record replay doctor health quiesce resume inventory probe ledger completion help" -f -a "top" -d 'Show the node live: GPUs, MIG instances, processes, tenants, workloads, and what needs attention'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand help; and not __fish_seen_subcommand_from run demo fleet top bill job explain advise fit demand statement metrics check-config record replay doctor health quiesce resume inventory probe ledger completion help" -f -a "bill" -d 'Print the bill of a running agent, or of a ledger file that no agent is using'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand help; and not __fish_seen_subcommand_from run demo fleet top bill job explain advise fit demand statement metrics check-config record replay doctor health quiesce resume inventory probe ledger completion help" -f -a "job" -d 'Print what a Slurm job held, used and cost on this node'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand help; and not __fish_seen_subcommand_from run demo fleet top bill job explain advise fit demand statement metrics check-config record replay doctor health quiesce resume inventory probe ledger completion help" -f -a "explain" -d 'Explain a line of a bill, a job, a pod or a GPU: who held what from when to when, at which rate, by which rule'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand help; and not __fish_seen_subcommand_from run demo fleet top bill job explain advise fit demand statement metrics check-config record replay doctor health quiesce resume inventory probe ledger completion help" -f -a "advise" -d 'Say what tenants may change to spend less, with the evidence; say nothing where it is not sure'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand help; and not __fish_seen_subcommand_from run demo fleet top bill job explain advise fit demand statement metrics check-config record replay doctor health quiesce resume inventory probe ledger completion help" -f -a "fit" -d 'Say whether workloads would have fitted together on one GPU or instance, from their past'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand help; and not __fish_seen_subcommand_from run demo fleet top bill job explain advise fit demand statement metrics check-config record replay doctor health quiesce resume inventory probe ledger completion help" -f -a "demand" -d 'Say how many GPUs were held, used and free by hour of the week, and what the next week may be like'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand help; and not __fish_seen_subcommand_from run demo fleet top bill job explain advise fit demand statement metrics check-config record replay doctor health quiesce resume inventory probe ledger completion help" -f -a "statement" -d 'Close a month with a document that never changes, show and verify such documents, and give credits'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand help; and not __fish_seen_subcommand_from run demo fleet top bill job explain advise fit demand statement metrics check-config record replay doctor health quiesce resume inventory probe ledger completion help" -f -a "metrics" -d 'Print every metric with its meaning'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand help; and not __fish_seen_subcommand_from run demo fleet top bill job explain advise fit demand statement metrics check-config record replay doctor health quiesce resume inventory probe ledger completion help" -f -a "check-config" -d 'Check a configuration file and report every problem'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand help; and not __fish_seen_subcommand_from run demo fleet top bill job explain advise fit demand statement metrics check-config record replay doctor health quiesce resume inventory probe ledger completion help" -f -a "record" -d 'Record the answers of this node\'s driver to a file that gpumeter replay can play anywhere'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand help; and not __fish_seen_subcommand_from run demo fleet top bill job explain advise fit demand statement metrics check-config record replay doctor health quiesce resume inventory probe ledger completion help" -f -a "replay" -d 'Run the agent on a recording instead of a driver'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand help; and not __fish_seen_subcommand_from run demo fleet top bill job explain advise fit demand statement metrics check-config record replay doctor health quiesce resume inventory probe ledger completion help" -f -a "doctor" -d 'Report what works on this node, what does not, and why'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand help; and not __fish_seen_subcommand_from run demo fleet top bill job explain advise fit demand statement metrics check-config record replay doctor health quiesce resume inventory probe ledger completion help" -f -a "health" -d 'Report the health of each GPU and what to do about it'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand help; and not __fish_seen_subcommand_from run demo fleet top bill job explain advise fit demand statement metrics check-config record replay doctor health quiesce resume inventory probe ledger completion help" -f -a "quiesce" -d 'Release the driver, so that GPUs can be reset or repartitioned (MIG) or the driver upgraded'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand help; and not __fish_seen_subcommand_from run demo fleet top bill job explain advise fit demand statement metrics check-config record replay doctor health quiesce resume inventory probe ledger completion help" -f -a "resume" -d 'Use the driver again after gpumeter quiesce'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand help; and not __fish_seen_subcommand_from run demo fleet top bill job explain advise fit demand statement metrics check-config record replay doctor health quiesce resume inventory probe ledger completion help" -f -a "inventory" -d 'List the GPUs that this node is expected to have, with state and since when'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand help; and not __fish_seen_subcommand_from run demo fleet top bill job explain advise fit demand statement metrics check-config record replay doctor health quiesce resume inventory probe ledger completion help" -f -a "probe" -d 'Ask the agent of this node whether it is healthy, for the exec probe of a container'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand help; and not __fish_seen_subcommand_from run demo fleet top bill job explain advise fit demand statement metrics check-config record replay doctor health quiesce resume inventory probe ledger completion help" -f -a "ledger" -d 'Copy the ledger, shrink it, or restore what an upgrade saved'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand help; and not __fish_seen_subcommand_from run demo fleet top bill job explain advise fit demand statement metrics check-config record replay doctor health quiesce resume inventory probe ledger completion help" -f -a "completion" -d 'Print the completions of a shell, to be loaded by it'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand help; and not __fish_seen_subcommand_from run demo fleet top bill job explain advise fit demand statement metrics check-config record replay doctor health quiesce resume inventory probe ledger completion help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand help; and __fish_seen_subcommand_from statement" -f -a "close" -d 'Close a month: its prices and tenants become final, and its bill is written into a document that never changes'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand help; and __fish_seen_subcommand_from statement" -f -a "show" -d 'Print a statement, a credit or an excerpt, as it was closed; or make the excerpt of one tenant, or of each'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand help; and __fish_seen_subcommand_from statement" -f -a "verify" -d 'Check that documents are as they were written, that their sums follow from their lines, that they are one chain, and that excerpts stand in the statements that are given too; exit with status 1 if not'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand help; and __fish_seen_subcommand_from statement" -f -a "credit" -d 'Give a tenant an amount of a statement back; it stands below the total of the next statement'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand help; and __fish_seen_subcommand_from inventory" -f -a "forget" -d 'Stop expecting an absent GPU: its series end, its account stays in the ledger'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand help; and __fish_seen_subcommand_from ledger" -f -a "snapshot" -d 'Write a consistent copy of the ledger into a new file, which any sqlite3 opens; the agent may run'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand help; and __fish_seen_subcommand_from ledger" -f -a "compact" -d 'Give the space of deleted rows back to the disk; the agent must not run. It needs as much free space as the ledger takes'
complete -c gpumeter -n "__fish_gpumeter_using_subcommand help; and __fish_seen_subcommand_from ledger" -f -a "restore" -d 'Restore the copy that an upgrade saved as LEDGER.v1, LEDGER.v2 ..., so that an earlier release can use it'

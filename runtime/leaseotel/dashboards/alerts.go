package dashboards

import (
	"bytes"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/leasegen/leasegen/runtime/leaseotel/internal/metrics"
)

// alert is an alert as Prometheus reads it.
type alert struct {
	Name   string            `yaml:"alert"`
	Expr   string            `yaml:"expr"`
	For    string            `yaml:"for,omitempty"`
	Labels map[string]string `yaml:"labels"`
	Notes  struct {
		Summary     string `yaml:"summary"`
		Description string `yaml:"description"`
		Runbook     string `yaml:"runbook_url"`
	} `yaml:"annotations"`
}

type ruleGroup struct {
	Name  string  `yaml:"name"`
	Rules []alert `yaml:"rules"`
}

func newAlert(name, severity, wait, expr, summary, description string) alert {
	a := alert{Name: "Leasegen" + name, Expr: expr, For: wait, Labels: map[string]string{"severity": severity}}
	a.Notes.Summary, a.Notes.Description = summary, description
	a.Notes.Runbook = Manual + "#" + strings.ToLower(a.Name)
	return a
}

// Alerts returns alerts.yaml, a file of Prometheus rules.
func Alerts() ([]byte, error) {
	var b bytes.Buffer
	fmt.Fprintf(&b, "# Written by go generate in runtime/leaseotel/dashboards. Needs WatchStatus and WatchHealth of package leaseotel.\n")
	e := yaml.NewEncoder(&b)
	e.SetIndent(2)
	err := e.Encode(map[string][]ruleGroup{"groups": {{Name: "leasegen", Rules: alerts()}}})
	return b.Bytes(), err
}

func alerts() []alert {
	name, process := "{{ $labels."+consumer+" }}", "{{ $labels.instance }}"
	increase := func(expr, window string, labels ...string) string {
		return by("sum", over("increase", expr, window), labels...)
	}
	beats := func(selectors ...string) string {
		return by("sum", over("rate", count(metrics.Heartbeat, selectors...), "5m"), "job", "instance")
	}
	notPaused := "\nunless\n" + told(series(metrics.Paused)) + " > 0"
	return []alert{
		newAlert("ConsumerBehind", "warning", "5m",
			told(series(metrics.Oldest))+" > 300"+notPaused,
			"Consumer "+name+" is behind.",
			"The oldest message that "+name+" has not passed is {{ $value | humanizeDuration }} old."),
		newAlert("ConsumerStopped", "critical", "5m",
			told(series(metrics.Oldest))+" > 60\nunless\n"+increase(series(metrics.Messages, outcome+`!="parked"`), "5m", consumer)+" > 0"+notPaused,
			"Consumer "+name+" has work and gets on with none of it.",
			"Messages have waited for "+name+" for {{ $value | humanizeDuration }}, and none was handled, skipped or given up on in five minutes."),
		newAlert("Unowned", "critical", "2m",
			told(series(metrics.Unowned))+" > 0"+notPaused,
			"Resources of "+name+" have no owner.",
			"{{ $value }} topics, slots or streams of "+name+", or its only one, are worked on by no process: no replica runs, or all are at their capacity."),
		newAlert("Paused", "info", "1h",
			told(series(metrics.Paused))+" > 0",
			"Consumer "+name+" is paused.",
			"An operator paused "+name+" more than an hour ago. Its messages wait until it is resumed."),
		newAlert("NoStandby", "info", "15m",
			told(series(metrics.Members, per+`=~"group|cluster"`))+" < 2",
			"Consumer "+name+" has no standby.",
			"{{ $value }} processes have a session of "+name+": when its owner fails, no other takes over at once."),
		newAlert("Fenced", "warning", "0m",
			increase(series(metrics.Fenced), "10m", consumer, "instance")+" > 0",
			"A write of "+name+" was refused.",
			process+" tried to store progress of "+name+" after its lease had ended, and was refused. It may have been frozen for longer than its TTL."),
		newAlert("Churn", "warning", "15m",
			increase(series(metrics.Lost), "10m", consumer)+" > 0\nor\n"+
				increase(series(metrics.Acquired, crashed+`="true"`), "10m", consumer)+" > 0",
			"Owners of "+name+" keep failing.",
			"For 25 minutes leases of "+name+" have been lost, or taken over from owners that did not give them back: {{ $value | humanize }} in the last ten minutes."),
		newAlert("DeadLetters", "warning", "0m",
			told(over("delta", series(metrics.Stored), "15m"))+" > 0\nor\n"+increase(series(metrics.DeadLetters), "15m", consumer)+" > 0",
			"Consumer "+name+" gave up on messages.",
			"About {{ $value | humanize }} messages of "+name+" became dead letters in the last 15 minutes."),
		newAlert("Missed", "critical", "0m",
			increase(series(metrics.Missed), "15m", consumer)+" > 0",
			"Consumer "+name+" missed messages.",
			"About {{ $value | humanize }} messages of streams that "+name+" reads were deleted in the last 15 minutes before it had read them."),
		newAlert("SetBack", "critical", "0m",
			increase(series(metrics.SetBack), "15m", consumer)+" > 0",
			"The backend of "+name+" was set back.",
			"Cursors of "+name+" lay beyond what the server has given out, and were taken back: the server, its log or a table lost what it had acknowledged."),
		newAlert("ParkedGrowing", "warning", "30m",
			told(series(metrics.ParkedKeys))+" > 100\nand\n"+told(over("deriv", series(metrics.ParkedKeys), "30m"))+" > 0",
			"More and more keys of "+name+" wait for a retry.",
			"{{ $value }} keys of "+name+" have messages that failed and wait, and the number has been growing."),
		newAlert("Heartbeat", "warning", "5m",
			beats(errorType+`!=""`)+"\n/\n"+beats()+" > 0.1\nor\n"+
				"histogram_quantile(0.99, "+by("sum", over("rate", buckets(metrics.Heartbeat), "5m"), "job", "instance", "le")+")\n>\n"+
				by("min", over("max_over_time", series(metrics.Belief), "5m")+" > 0", "job", "instance")+" / 5",
			"Heartbeats of "+process+" are slow or fail.",
			"More than a tenth of the heartbeats of "+process+" fail, or one in a hundred takes longer than about a sixth of its TTL. If it gets worse, leases will be lost."),
		newAlert("Stuck", "warning", "0m",
			by("sum", series(metrics.StuckNow), consumer, "instance")+" > 0\nor\n"+increase(series(metrics.Stuck), "5m", consumer, "instance")+" > 0",
			"A handler of "+name+" is stuck.",
			"Handler calls of "+name+" in "+process+" take longer than WithStuckAfter allows; their resources wait."),
	}
}

// Package metrics defines what leaseotel measures: its instruments are made from it, and so are the dashboard and the
// alerts.
package metrics

import "go.opentelemetry.io/otel/attribute"

// Form is the kind of an instrument.
type Form int

// The kinds of instruments.
const (
	Counter Form = iota
	Gauge
	Histogram
)

// Metric is an instrument's definition. Bounds are a histogram's.
type Metric struct {
	Form             Form
	Name, Unit, What string
	Bounds           []float64
}

// Attributes that are not of OpenTelemetry's conventions. Crashed and Outcome have few values, Per those of operate.ConsumerStatus.
const (
	Kind    = attribute.Key("messaging.leasegen.kind")
	Per     = attribute.Key("messaging.leasegen.per")
	Crashed = attribute.Key("crashed")
	Outcome = attribute.Key("outcome")
)

var (
	// calls are the boundaries that the conventions advise, in seconds, and two below them: handlers that write a row take
	// less than five milliseconds.
	calls = []float64{0.0005, 0.001, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10}
	// waits are the boundaries of what may take hours.
	waits = []float64{0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 900, 3600, 21600, 86400}
)

// Of messages, as they are handled and published.
var (
	Process     = Metric{Histogram, "messaging.process.duration", "s", "Duration of handler calls.", calls}
	Operation   = Metric{Histogram, "messaging.client.operation.duration", "s", "Duration of calls of the backend: publish, commit.", calls}
	Latency     = Metric{Histogram, "leasegen.delivery.latency", "s", "Time from the publication of a call's oldest message to the call, of first attempts.", waits}
	Sent        = Metric{Counter, "messaging.client.sent.messages", "{message}", "Messages published.", nil}
	Consumed    = Metric{Counter, "messaging.client.consumed.messages", "{message}", "Messages given to handlers, once for each attempt.", nil}
	Messages    = Metric{Counter, "leasegen.messages", "{message}", "Messages by outcome, as progress is stored. The sum is exact, also when observations are dropped.", nil}
	Retries     = Metric{Counter, "leasegen.retries", "{message}", "Failures of handlers after which the message is tried again.", nil}
	DeadLetters = Metric{Counter, "leasegen.dead_letters", "{message}", "Messages given up on.", nil}
	Missed      = Metric{Counter, "leasegen.stream.missed", "{message}", "Messages of streams that others write to, deleted before they were read; 1 where it is not known how many.", nil}
	SetBack     = Metric{Counter, "leasegen.cursor.set_back", "{cursor}", "Cursors that lay beyond the log, because the server or a table was set back, and were taken back.", nil}
	Stuck       = Metric{Counter, "leasegen.handler.stuck", "{call}", "Handler calls that took too long.", nil}
)

// Of leases and the process, as things happen.
var (
	Acquired  = Metric{Counter, "leasegen.lease.acquired", "{lease}", "Leases acquired; crashed tells those whose former owner did not give them back.", nil}
	Released  = Metric{Counter, "leasegen.lease.released", "{lease}", "Leases given back.", nil}
	Lost      = Metric{Counter, "leasegen.lease.lost", "{lease}", "Leases that ended against their holder's will.", nil}
	Fenced    = Metric{Counter, "leasegen.lease.fenced", "{write}", "Writes refused because the lease is not held under its epoch any more.", nil}
	Heartbeat = Metric{Histogram, "leasegen.session.heartbeat.duration", "s", "Duration of heartbeats.", calls}
	Renew     = Metric{Histogram, "leasegen.lease.renew.duration", "s", "Duration of renewals of leases that expire one by one.", calls}
	Stalled   = Metric{Counter, "leasegen.consumer.stalled", "{activity}", "Times that a consumer had work of a kind and made no step with it for too long.", nil}
	Dropped   = Metric{Counter, "leasegen.observations.dropped", "{observation}", "Observations dropped because they came too fast; counters lack them, but for leasegen.messages.", nil}
)

// Of this process's consumers, at present.
var (
	Ready    = Metric{Gauge, "leasegen.consumer.ready", "{process}", "1 when the consumer is ready in this process, else 0.", nil}
	Owned    = Metric{Gauge, "leasegen.lease.owned", "{lease}", "Leases that this process holds.", nil}
	Belief   = Metric{Gauge, "leasegen.session.belief.remaining", "s", "For how much longer the process believes in its session if no heartbeat is confirmed.", nil}
	StuckNow = Metric{Gauge, "leasegen.handler.stuck.now", "{call}", "Handler calls that take too long at present.", nil}
)

// Of what the backend keeps for all processes.
var (
	LagMax     = Metric{Gauge, "leasegen.consumer.lag.max", "{message}", "Unread messages of the resource that is furthest behind.", nil}
	Lag        = Metric{Gauge, "leasegen.consumer.lag", "{message}", "Unread messages.", nil}
	Oldest     = Metric{Gauge, "leasegen.consumer.oldest_unread", "s", "Age of the oldest unread message.", nil}
	Resources  = Metric{Gauge, "leasegen.consumer.resources", "{lease}", "Resources known.", nil}
	Unowned    = Metric{Gauge, "leasegen.consumer.unowned", "{lease}", "Resources that no process owns.", nil}
	Members    = Metric{Gauge, "leasegen.consumer.members", "{process}", "Processes with a session.", nil}
	Standbys   = Metric{Gauge, "leasegen.consumer.standbys", "{process}", "Processes with a session that own no lease.", nil}
	ParkedKeys = Metric{Gauge, "leasegen.consumer.parked_keys", "{key}", "Keys with messages that wait for a retry.", nil}
	Stored     = Metric{Gauge, "leasegen.consumer.dead_letters", "{message}", "Dead letters stored.", nil}
	Paused     = Metric{Gauge, "leasegen.consumer.paused", "{pause}", "1 while an operator has paused the consumer, else 0.", nil}
)

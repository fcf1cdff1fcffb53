package main

import (
	"github.com/leasegen/leasegen/bench/report"
)

// workloads are all that is measured, in the order of the page.
func workloads(z size) []workload {
	all := []workload{
		drainOf(1), drainOf(100), drainOf(10_000),
		rowsOneByOne(), rowsInBatches(),
		publishOne(), publishHundred(), publishInTransaction(),
		latencyIdle(), latencyHalfLoad(),
		handover(), crash(),
		leases(z), idle(z),
	}
	for i := range all {
		all[i].cannot = refusal(all[i].ID)
	}
	return all
}

// refusal is what a contender says of a workload: of its id, or of the longest beginning of that which it names.
func refusal(id string) func(contender) string {
	return func(c contender) string {
		best, words := -1, ""
		for name, why := range c.cannot {
			w := workload{Workload: report.Workload{ID: id}}
			if w.named(name) && len(name) > best {
				best, words = len(name), why
			}
		}
		return words
	}
}

func rate(name string) report.Metric {
	return report.Metric{ID: "rate", Name: name, Unit: "msg/s", Rate: true}
}

// costs are what a thousand messages cost.
func costs() []report.Metric {
	return []report.Metric{
		{ID: "wal", Name: "WAL per 1,000", Unit: "kB"},
		{ID: "writes", Name: "write transactions per 1,000", Unit: ""},
		{ID: "server-cpu", Name: "server CPU per 1,000", Unit: "ms"},
		{ID: "client-cpu", Name: "client CPU per 1,000", Unit: "ms"},
	}
}

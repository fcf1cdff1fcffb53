package dashboards

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/leasegen/leasegen/runtime/leaseotel/internal/metrics"
)

// Grafana's model of a dashboard, as far as this one needs it.
type (
	dashboard struct {
		ID            *int           `json:"id"` // null: Grafana gives one
		UID           string         `json:"uid"`
		Title         string         `json:"title"`
		Description   string         `json:"description"`
		Tags          []string       `json:"tags"`
		SchemaVersion int            `json:"schemaVersion"`
		Editable      bool           `json:"editable"`
		GraphTooltip  int            `json:"graphTooltip"`
		Refresh       string         `json:"refresh"`
		Time          map[string]any `json:"time"`
		Timezone      string         `json:"timezone"`
		Templating    list           `json:"templating"`
		Annotations   list           `json:"annotations"`
		Links         []link         `json:"links"`
		Panels        []panel        `json:"panels"`
	}
	list struct {
		List []any `json:"list"`
	}
	link struct {
		Title       string   `json:"title"`
		Type        string   `json:"type"`
		Icon        string   `json:"icon"`
		Tooltip     string   `json:"tooltip"`
		URL         string   `json:"url"`
		Tags        []string `json:"tags"`
		AsDropdown  bool     `json:"asDropdown"`
		IncludeVars bool     `json:"includeVars"`
		KeepTime    bool     `json:"keepTime"`
		TargetBlank bool     `json:"targetBlank"`
	}
	source struct {
		Type string `json:"type"`
		UID  string `json:"uid"`
	}
	variable struct {
		Name       string         `json:"name"`
		Label      string         `json:"label"`
		Type       string         `json:"type"`
		Datasource *source        `json:"datasource,omitempty"`
		Definition string         `json:"definition,omitempty"`
		Query      any            `json:"query"`
		Refresh    int            `json:"refresh"` // 1: when the dashboard is loaded, 2: when its time range changes
		Sort       int            `json:"sort"`    // 1: by name
		Multi      bool           `json:"multi"`
		IncludeAll bool           `json:"includeAll"`
		AllValue   string         `json:"allValue,omitempty"`
		Current    map[string]any `json:"current,omitempty"`
	}
	panel struct {
		ID              int              `json:"id"`
		Type            string           `json:"type"`
		Title           string           `json:"title"`
		Description     string           `json:"description,omitempty"`
		GridPos         grid             `json:"gridPos"`
		Collapsed       *bool            `json:"collapsed,omitempty"`
		Panels          *[]panel         `json:"panels,omitempty"`
		Datasource      *source          `json:"datasource,omitempty"`
		Targets         []target         `json:"targets,omitempty"`
		FieldConfig     *fields          `json:"fieldConfig,omitempty"`
		Options         map[string]any   `json:"options,omitempty"`
		Transformations []map[string]any `json:"transformations,omitempty"`
	}
	grid struct {
		H int `json:"h"`
		W int `json:"w"`
		X int `json:"x"`
		Y int `json:"y"`
	}
	target struct {
		RefID        string `json:"refId"`
		Datasource   source `json:"datasource"`
		Expr         string `json:"expr"`
		LegendFormat string `json:"legendFormat,omitempty"`
		Range        bool   `json:"range"`
		Instant      bool   `json:"instant"`
		Format       string `json:"format"`
		EditorMode   string `json:"editorMode"`
	}
	fields struct {
		Defaults  map[string]any   `json:"defaults"`
		Overrides []map[string]any `json:"overrides"`
	}
)

// prometheus is the data source that the dashboard's variable names.
var prometheus = source{"prometheus", "${datasource}"}

// Dashboard returns dashboard.json, in the form in which Grafana reads it from a folder.
func Dashboard() ([]byte, error) {
	d := dashboard{
		UID: "leasegen", Title: "leasegen",
		Description: "Consumers of leasegen: are they keeping up, is anything failing, who owns what, and is the backend fine?",
		Tags:        []string{"leasegen"}, SchemaVersion: 39, Editable: true, GraphTooltip: 1, Refresh: "30s",
		Time:       map[string]any{"from": "now-3h", "to": "now"},
		Templating: list{variables()}, Annotations: list{[]any{}},
		Links:  []link{{Title: "Runbook", Type: "link", Icon: "doc", URL: Manual + "#dashboard-and-alerts", Tags: []string{}, TargetBlank: true}},
		Panels: laid(rows()),
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	err := e.Encode(d)
	return b.Bytes(), err
}

func variables() []any {
	all := map[string]any{"text": []string{"All"}, "value": []string{"$__all"}}
	query := func(name, title, values string) variable {
		return variable{Name: name, Label: title, Type: "query", Datasource: &prometheus, Definition: values,
			Query: map[string]any{"qryType": 1, "query": values, "refId": name}, Refresh: 2, Sort: 1,
			Multi: true, IncludeAll: true, AllValue: ".*", Current: all}
	}
	return []any{
		variable{Name: "datasource", Label: "Data source", Type: "datasource", Query: "prometheus", Refresh: 1},
		query("consumer", "Consumer", fmt.Sprintf(`label_values({__name__=~"leasegen_.+"}, %s)`, consumer)),
		query("kind", "Kind", fmt.Sprintf("label_values(%s, %s)", series(metrics.Consumed, ofConsumer), kind)),
	}
}

// The values that the variables choose.
var (
	ofConsumer = consumer + `=~"$consumer"`
	ofKind     = kind + `=~"$kind"`
)

// row is a row of panels.
type row struct {
	title  string
	panels []panel
}

func rows() []row {
	rate := func(expr string) string { return over("rate", expr, "$__rate_interval") }
	rise := func(expr string) string { return over("increase", expr, "$__rate_interval") }
	name, at := "{{"+consumer+"}}", "{{"+consumer+"}} {{instance}}"
	state := func(title string, m metrics.Metric, unit string) panel {
		return graph(title, m.What, unit, line{told(series(m, ofConsumer)), name})
	}
	// spread draws two quantiles of a histogram.
	spread := func(title string, m metrics.Metric, legend string, labels []string, selectors ...string) panel {
		at := func(q float64) string {
			return fmt.Sprintf("histogram_quantile(%g, %s)", q, by("sum", rate(buckets(m, selectors...)), append([]string{"le"}, labels...)...))
		}
		return graph(title, m.What, "s", line{at(0.5), legend + " p50"}, line{at(0.99), legend + " p99"})
	}
	byKind, ofBoth := []string{consumer, kind}, []string{ofConsumer, ofKind}
	both := name + " {{" + kind + "}}"
	return []row{
		{"Is it keeping up?", []panel{
			overview(),
			state("Oldest unread message", metrics.Oldest, "s"),
			state("Unread messages", metrics.Lag, "short"),
			state("Unread messages of the resource furthest behind", metrics.LagMax, "short"),
			spread("From publication to handler", metrics.Latency, name, []string{consumer}, ofBoth...),
			graph("Messages given to handlers", metrics.Consumed.What, "mps", line{by("sum", rate(series(metrics.Consumed, ofBoth...)), byKind...), both}),
			graph("Messages published", metrics.Sent.What, "mps", line{by("sum", rate(series(metrics.Sent, ofKind)), kind), "{{" + kind + "}}"}),
		}},
		{"Is it failing?", []panel{
			graph("Outcomes", metrics.Messages.What, "mps", line{by("sum", rate(series(metrics.Messages, ofBoth...)), outcome), "{{" + outcome + "}}"}),
			graph("Retries", metrics.Retries.What, "mps", line{by("sum", rate(series(metrics.Retries, ofBoth...)), byKind...), both}),
			graph("Errors of handlers", "Handler calls that failed, by the type of their error.", "ops",
				line{by("sum", rate(count(metrics.Process, ofConsumer, ofKind, errorType+`!=""`)), consumer, errorType), name + " {{" + errorType + "}}"}),
			spread("Duration of handler calls", metrics.Process, both, byKind, ofBoth...),
			graph("New dead letters", metrics.DeadLetters.What, "short", line{by("sum", rise(series(metrics.DeadLetters, ofBoth...)), byKind...), both}),
			state("Dead letters stored", metrics.Stored, "short"),
			graph("Missed and set back", "Messages that others deleted before they were read, and cursors that were taken back because the server was set back.", "short",
				line{by("sum", rise(series(metrics.Missed, ofConsumer)), consumer), name + " messages missed"},
				line{by("sum", rise(series(metrics.SetBack, ofConsumer)), consumer), name + " cursors set back"}),
			state("Keys that wait for a retry", metrics.ParkedKeys, "short"),
			graph("Stuck handlers", metrics.StuckNow.What, "short", line{by("sum", series(metrics.StuckNow, ofConsumer), consumer, "instance"), at},
				line{by("sum", rise(series(metrics.Stuck, ofConsumer)), consumer), name + " newly"}),
			graph("Stalls", metrics.Stalled.What, "short", line{by("sum", rise(series(metrics.Stalled, ofConsumer)), consumer, "instance"), at}),
		}},
		{"Who owns what?", []panel{
			graph("Leases by process", metrics.Owned.What, "short", line{by("sum", series(metrics.Owned, ofConsumer), consumer, "instance"), at}),
			graph("Resources", "Resources that are known, and how many have no owner.", "short", line{told(series(metrics.Resources, ofConsumer)), name},
				line{told(series(metrics.Unowned, ofConsumer)), name + " unowned"}),
			graph("Processes", "Processes with a session, and how many of them own none of the resources.", "short",
				line{told(series(metrics.Members, ofConsumer)), name}, line{told(series(metrics.Standbys, ofConsumer)), name + " standby"}),
			graph("Acquired", metrics.Acquired.What, "short",
				line{by("sum", rise(series(metrics.Acquired, ofConsumer)), consumer, crashed), name + " crashed={{" + crashed + "}}"}),
			graph("Given back and lost", "Leases given back, and leases that ended against their holder's will.", "short",
				line{by("sum", rise(series(metrics.Released, ofConsumer)), consumer), name + " given back"},
				line{by("sum", rise(series(metrics.Lost, ofConsumer)), consumer), name + " lost"}),
			graph("Refused writes", metrics.Fenced.What, "short", line{by("sum", rise(series(metrics.Fenced, ofConsumer)), consumer, "instance"), at}),
		}},
		{"Is the backend fine?", []panel{
			spread("Heartbeats", metrics.Heartbeat, "{{instance}}", []string{"instance"}),
			graph("Failed heartbeats", "Heartbeats that failed, by the type of their error.", "ops",
				line{by("sum", rate(count(metrics.Heartbeat, errorType+`!=""`)), "instance", errorType), "{{instance}} {{" + errorType + "}}"}),
			spread("Renewals of leases", metrics.Renew, at, []string{consumer, "instance"}, ofConsumer),
			graph("Belief left", metrics.Belief.What, "s", line{by("min", series(metrics.Belief, ofConsumer), consumer, "instance"), at}),
			spread("Commits", metrics.Operation, name, []string{consumer}, ofConsumer, operation+`="commit"`),
			spread("Publishing", metrics.Operation, "{{"+kind+"}}", []string{kind}, ofKind, operation+`="publish"`),
			graph("Ready processes", metrics.Ready.What, "short", line{by("sum", series(metrics.Ready, ofConsumer), consumer), name}),
			graph("Observations dropped", metrics.Dropped.What, "short", line{by("sum", rise(series(metrics.Dropped, ofConsumer)), consumer, "instance"), at}),
		}},
	}
}

// line is a query of a graph, and what its lines are called.
type line struct{ expr, legend string }

func graph(title, what, unit string, lines ...line) panel {
	p := panel{Type: "timeseries", Title: title, Description: what, GridPos: grid{H: 8, W: 8}, Datasource: &prometheus,
		FieldConfig: &fields{Defaults: map[string]any{"unit": unit, "min": 0,
			"custom": map[string]any{"drawStyle": "line", "lineWidth": 1, "fillOpacity": 8, "showPoints": "auto"}}, Overrides: []map[string]any{}},
		Options: map[string]any{"legend": map[string]any{"calcs": []string{}, "displayMode": "list", "placement": "bottom", "showLegend": true},
			"tooltip": map[string]any{"mode": "multi", "sort": "desc"}},
	}
	for i, l := range lines {
		p.Targets = append(p.Targets, target{RefID: string(rune('A' + i)), Datasource: prometheus, Expr: l.expr, LegendFormat: l.legend, Range: true,
			Format: "time_series", EditorMode: "code"})
	}
	return p
}

// overview is a table with a line for each consumer, as leasegen status prints it.
func overview() panel {
	columns := []struct {
		metric metrics.Metric
		title  string
	}{
		{metrics.Resources, "resources"}, {metrics.Members, "members"}, {metrics.Standbys, "standbys"}, {metrics.Unowned, "unowned"},
		{metrics.LagMax, "lag (max)"}, {metrics.Oldest, "oldest unread"}, {metrics.ParkedKeys, "parked keys"}, {metrics.Stored, "dead letters"},
		{metrics.Paused, "paused"},
	}
	titles, order := map[string]string{consumer: "consumer", per: "per"}, map[string]int{consumer: 0, per: 1}
	p := panel{Type: "table", Title: "Consumers", Description: "The columns of leasegen status.", GridPos: grid{H: 8, W: 24}, Datasource: &prometheus,
		FieldConfig: &fields{Defaults: map[string]any{"unit": "short"}, Overrides: []map[string]any{{
			"matcher":    map[string]any{"id": "byName", "options": "oldest unread"},
			"properties": []map[string]any{{"id": "unit", "value": "s"}},
		}}},
		Options: map[string]any{"showHeader": true, "cellHeight": "sm"},
	}
	for i, c := range columns {
		id := string(rune('A' + i))
		p.Targets = append(p.Targets, target{RefID: id, Datasource: prometheus, Expr: by("max", series(c.metric, ofConsumer), consumer, per),
			Instant: true, Format: "table", EditorMode: "code"})
		titles["Value #"+id], order["Value #"+id] = c.title, i+2
	}
	p.Transformations = []map[string]any{
		{"id": "merge", "options": map[string]any{}},
		{"id": "organize", "options": map[string]any{"excludeByName": map[string]bool{"Time": true}, "indexByName": order, "renameByName": titles}},
	}
	return p
}

// laid gives rows and their panels ids and places: from left to right, as many as fit.
func laid(rows []row) (all []panel) {
	const width = 24
	open, y := false, 0
	for _, r := range rows {
		all = append(all, panel{ID: len(all) + 1, Type: "row", Title: r.title, GridPos: grid{H: 1, W: width, Y: y}, Collapsed: &open, Panels: &[]panel{}})
		y++
		x, height := 0, 0
		for _, p := range r.panels {
			if x+p.GridPos.W > width {
				x, y = 0, y+height
			}
			p.ID, p.GridPos.X, p.GridPos.Y = len(all)+1, x, y
			x, height = x+p.GridPos.W, p.GridPos.H
			all = append(all, p)
		}
		y += height
	}
	return all
}

package leaseweb

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/leasegen/leasegen/runtime/operate"
)

const (
	levelInfo = slog.LevelInfo
	levelWarn = slog.LevelWarn
)

func attr(name, value string) slog.Attr { return slog.String(name, value) }

// who is what the log has of a request.
func (p *Pages) who(r *http.Request, what string) []slog.Attr {
	return []slog.Attr{attr("action", what), attr("method", r.Method), attr("actor", p.opts.actor(r)), attr("remote", r.RemoteAddr)}
}

// forgetter is a backend that can delete what it keeps of a consumer.
type forgetter interface {
	Forget(ctx context.Context, consumer string) error
}

// action changes something. A preview says what it would do, and how many it would do it to; it is done to exactly these.
type action struct {
	name    string
	within  time.Duration
	preview func(*request, operate.ConsumerStatus) (plan, error)
	do      func(context.Context, *request, plan) (int, error)
}

func (p *Pages) actions() []action {
	all := []action{
		{"replay", actWithin, previewReplay, func(ctx context.Context, _ *request, of plan) (int, error) { return p.op.Replay(ctx, of.letters) }},
		{"purge", actWithin, previewPurge, func(ctx context.Context, _ *request, of plan) (int, error) { return p.op.Purge(ctx, of.letters) }},
		{"retry", actWithin, previewRetry, func(ctx context.Context, _ *request, of plan) (int, error) { return p.op.RetryParked(ctx, of.parked) }},
		{"move", actWithin, previewMove, func(ctx context.Context, r *request, of plan) (int, error) {
			return p.op.SetCursor(ctx, of.Consumer, r.field("r"), of.target)
		}},
		{"pause", lookWithin, previewPause, func(ctx context.Context, _ *request, of plan) (int, error) { return 1, p.op.Pause(ctx, of.Consumer) }},
		{"resume", lookWithin, previewResume, func(ctx context.Context, _ *request, of plan) (int, error) { return 1, p.op.Resume(ctx, of.Consumer) }},
	}
	if be, ok := p.op.(forgetter); ok {
		all = append(all, action{"forget", actWithin, previewForget, func(ctx context.Context, _ *request, of plan) (int, error) {
			return 1, be.Forget(ctx, of.Consumer)
		}})
	}
	return all
}

// plan is what an action would do.
type plan struct {
	Action   string
	Consumer string
	Question string
	Effects  []string
	Count    int                       // to how many; 0: there is no work
	Nothing  string                    // why there is no work
	Button   string                    // what it does, in words
	Grave    bool                      // it cannot be taken back
	Typed    bool                      // the consumer's name has to be typed
	Groups   []operate.DeadLetterGroup // the largest
	Move     *move
	Selects  []header // what selects, for the eye
	Fields   []header // what selects, for the form
	Notice   string   // why it is asked again
	Back     string
	letters  operate.DeadLetterFilter
	parked   operate.ParkedFilter
	target   operate.CursorTarget
}

// move is the form that asks where a cursor goes.
type move struct {
	Resource, To, After string
	Chosen              bool
}

func (of *plan) carry(name string, values ...string) {
	for _, v := range values {
		if v != "" {
			of.Fields = append(of.Fields, header{name, v})
		}
	}
}

func (of plan) view() view {
	return view{name: "action", Title: of.Question, Consumer: of.Consumer, Body: of}
}

// Carried are the fields of the form, as one.
func (of plan) Carried() string {
	q := url.Values{}
	for _, f := range of.Fields {
		q.Add(f.Name, f.Value)
	}
	return q.Encode()
}

// ask shows the preview.
func (a action) ask(r *request) (view, error) {
	of, err := a.plan(r)
	return of.view(), err
}

func (a action) plan(r *request) (plan, error) {
	c, err := r.known()
	if err != nil {
		return plan{}, err
	}
	of, err := a.preview(r, c)
	if err == nil {
		err = r.old
	}
	if of.Action, of.Consumer = a.name, c.Consumer; of.Back == "" {
		of.Back = link("consumer", "c", c.Consumer)
	}
	return of, err
}

// perform does what was previewed, if it is the same still.
func (a action) perform(r *request) (goes string, err error) {
	of, err := a.plan(r)
	if err != nil {
		return "", err
	}
	if r.field("picked") != "" { // on a list, whose ids may be too many for an address
		return "", shown{of.view(), http.StatusOK}
	}
	expected, err := strconv.Atoi(r.field("expected"))
	if err != nil {
		return "", problem{http.StatusBadRequest, "The form does not say how many are expected."}
	}
	switch {
	case of.Count != expected:
		of.Notice = fmt.Sprintf("It would have been done to %s, and is %s now. Look again.",
			grouped(strconv.Itoa(expected)), grouped(strconv.Itoa(of.Count)))
		return "", shown{of.view(), http.StatusConflict}
	case of.Typed && r.field("name") != of.Consumer:
		of.Notice = "Type the name of the consumer to confirm."
		return "", shown{of.view(), http.StatusConflict}
	case of.Count == 0:
		return of.Back, nil
	}
	ctx, cancel := context.WithTimeout(r.Context(), a.within)
	defer cancel()
	n, err := a.do(ctx, r, of)
	r.audit(a.name, of, n, err)
	r.pages.shared.changed(of.Consumer)
	switch {
	case err != nil && !answered(err):
		return "", fmt.Errorf("%w; a part of it may have been done: look before you repeat it", err)
	case err != nil:
		return "", err
	}
	mark := "?"
	if strings.Contains(of.Back, "?") {
		mark = "&"
	}
	return of.Back + mark + "done=" + r.pages.outcomes.add(outcome(a.name, n)), nil
}

// audit logs what was done, to what and by whom. It never has a payload.
func (r *request) audit(name string, of plan, n int, err error) {
	level, attrs := levelInfo, append(r.pages.who(r.Request, name), attr("consumer", of.Consumer), slog.Int("expected", of.Count), slog.Int("count", n))
	var selects []any
	for _, f := range of.Fields {
		if i := slices.IndexFunc(selects, func(a any) bool { return a.(slog.Attr).Key == f.Name }); i >= 0 {
			selects[i] = attr(f.Name, selects[i].(slog.Attr).Value.String()+","+f.Value)
			continue
		}
		selects = append(selects, attr(f.Name, f.Value))
	}
	attrs = append(attrs, slog.Group("filter", selects...))
	if err != nil {
		level, attrs = levelWarn, append(attrs, attr("error", err.Error()))
	}
	r.pages.opts.log.LogAttrs(r.Context(), level, "leaseweb: operator action", attrs...)
}

// outcome says what an action has done.
func outcome(name string, n int) string {
	switch name {
	case "replay":
		return plural(n, "dead letter") + " replayed. The consumer gets them now; what fails again comes back here."
	case "purge":
		return plural(n, "dead letter") + " purged."
	case "retry":
		return plural(n, "message") + " due now."
	case "move":
		return plural(n, "cursor") + " moved."
	case "pause":
		return "Paused. Owners finish the calls they are in and give their leases back."
	case "resume":
		return "Resumed. Replicas acquire the leases again."
	}
	return "Forgotten."
}

func previewReplay(r *request, c operate.ConsumerStatus) (plan, error) {
	of, err := r.previewLetters("Replay")
	of.Effects = append([]string{
		"They are put back for " + c.Consumer + ", due at once, with their attempts forgotten.",
		"One that fails again becomes a dead letter again.",
	}, of.Effects...)
	if c.Paused {
		of.Effects = append(of.Effects, "It is paused: they wait until it is resumed.")
	}
	return of, err
}

func previewPurge(r *request, _ operate.ConsumerStatus) (plan, error) {
	of, err := r.previewLetters("Purge")
	of.Grave = true
	of.Effects = append([]string{"They are deleted, payload and all. That cannot be taken back."}, of.Effects...)
	return of, err
}

// mostMoved bounds the dead letters that one action takes: a preview has counted each.
const mostMoved = 100_000

// previewLetters counts the dead letters that are selected, up to the last one there is now: later ones are not touched. An
// action begins with the oldest. Where not all can be counted, the preview is of these, too.
func (r *request) previewLetters(doing string) (plan, error) {
	f, err := r.letters()
	if err != nil {
		return plan{}, err
	}
	f.After = ""
	q := selecting(r.form)
	of := plan{Back: address("dead", q)}
	groups, err := r.groups(f)
	more := groups.More
	if more && err == nil {
		f.Limit = mostMoved
		groups, err = r.groups(f)
	}
	if err != nil {
		return plan{}, err
	}
	if f.Through == "" && len(f.IDs) == 0 {
		f.Through = groups.Last
	}
	of.Count, f.Limit = groups.Total, groups.Total
	of.letters = f
	for _, field := range letterFields {
		of.carry(field, r.field(field))
	}
	of.Selects, of.Groups = of.Fields, groups.Groups[:min(5, len(groups.Groups))]
	of.carry("id", f.IDs...)
	of.carry("through", f.Through)
	many := plural(of.Count, "dead letter")
	of.Question, of.Button = fmt.Sprintf("%s %s?", doing, many), fmt.Sprintf("%s %s", doing, many)
	of.Nothing = "None match any more."
	if more {
		of.Effects = append(of.Effects, "There may be more: these are the oldest.")
	}
	return of, nil
}

func previewRetry(r *request, c operate.ConsumerStatus) (plan, error) {
	f, err := r.waiting()
	if err != nil {
		return plan{}, err
	}
	f.After, f.Limit = "", mostRetried+1
	list, err := r.parked(f)
	if err != nil {
		return plan{}, err
	}
	list, more := retried(list)
	of := plan{Count: len(list), Nothing: "None of them is parked any more.", Back: link("parked", "c", c.Consumer, "r", f.Resource, "key", f.Key)}
	for _, m := range list {
		of.parked.IDs = append(of.parked.IDs, m.MessageID)
	}
	of.parked.Consumer = c.Consumer
	of.carry("r", f.Resource)
	of.carry("key", f.Key)
	of.Selects = of.Fields
	of.carry("id", of.parked.IDs...)
	many := plural(of.Count, "parked message")
	of.Question, of.Button = "Retry "+many+" now?", "Retry "+many
	of.Effects = []string{"Each is due now, with its attempts kept. A message behind another of its key comes when that one has been handled."}
	if more {
		of.Effects = append(of.Effects, fmt.Sprintf("There are more: these are the first %s.", grouped(strconv.Itoa(of.Count))))
	}
	if c.Paused {
		of.Effects = append(of.Effects, "It is paused: they wait until it is resumed.")
	}
	return of, nil
}

// Where a cursor can go.
const (
	toBeginning = "beginning"
	toNow       = "now"
	toAfter     = "after"
)

func previewMove(r *request, c operate.ConsumerStatus) (plan, error) {
	m := move{Resource: r.field("r"), To: r.field("to"), After: strings.TrimSpace(r.field("message"))}
	of := plan{Move: &m, Back: link("cursors", "c", c.Consumer, "r", m.Resource), Grave: true, Typed: m.Resource == "",
		Question: "Move the cursors of all resources?", Count: c.Resources}
	var owned, unread = c.Resources - c.Unowned, c.LagTotal
	list, err := r.cursors(c.Consumer, m.Resource)
	if isNoCursor(err) {
		return of, problem{http.StatusBadRequest, "It reads no messages and has no cursor: " + noCursorHelp}
	}
	if err != nil {
		return of, err
	}
	if m.Resource != "" {
		of.Question, of.Nothing, of.Count, owned = fmt.Sprintf("Move the cursor of %s?", m.Resource), "There is no such resource.", len(list), 0
		if len(list) > 0 {
			unread = list[0].Lag
			if list[0].Session != "" {
				owned = 1
			}
		}
	}
	dropped := "their parked messages and dead letters are dropped"
	if m.Resource == "" {
		dropped = fmt.Sprintf("%s and %s are dropped", plural(c.ParkedKeys, "parked key"), plural(c.DeadLetters, "dead letter"))
	}
	switch {
	case m.To == toBeginning:
		of.target = operate.CursorTarget{Beginning: true}
		of.Effects = []string{"All messages that are still in the log are handled again; " + dropped + "."}
		of.Button = "Move " + plural(of.Count, "cursor") + " to the beginning"
	case m.To == toNow:
		of.target = operate.CursorTarget{Now: true}
		of.Effects = []string{plural(unread, "message") + " that are unread now would never be handled."}
		of.Button = "Move " + plural(of.Count, "cursor") + " to the present"
	case m.To == toAfter && m.After != "":
		of.target = operate.CursorTarget{After: m.After}
		of.Effects = []string{"Messages up to " + m.After + " count as handled, later ones are handled, again if they were before."}
		of.Button = "Move " + plural(of.Count, "cursor") + " behind " + m.After
	case r.posted || m.To != "":
		return of, problem{http.StatusBadRequest, "Say where to: to the beginning, to the present, or behind a message, by its id."}
	default:
		return of, nil
	}
	m.Chosen = true
	of.Effects = append(of.Effects, fmt.Sprintf("%s owned now: taken from the owners, whose work under way is not committed.",
		verb(owned, "resource", "is", "are")))
	of.carry("r", m.Resource)
	of.carry("to", m.To)
	of.carry("message", m.After)
	return of, nil
}

func previewPause(_ *request, c operate.ConsumerStatus) (plan, error) {
	of := plan{Question: "Pause " + c.Consumer + "?", Button: "Pause " + c.Consumer, Count: 1, Effects: []string{
		fmt.Sprintf("%s and give back %s. No lease is granted until it is resumed, whatever restarts.",
			verb(c.Members, "replica", "finishes its call", "finish the calls they are in"), plural(c.Resources-c.Unowned, "lease")),
		"Messages wait, and the log grows.",
	}}
	if c.Paused {
		of.Count, of.Nothing = 0, "It is paused already."
	}
	return of, nil
}

func previewResume(_ *request, c operate.ConsumerStatus) (plan, error) {
	of := plan{Question: "Resume " + c.Consumer + "?", Button: "Resume " + c.Consumer, Count: 1, Effects: []string{
		fmt.Sprintf("%s leases again at once. %s to be handled.", verb(c.Members, "replica", "acquires", "acquire"),
			verb(int(c.LagTotal), "message", "waits", "wait")),
	}}
	if !c.Paused {
		of.Count, of.Nothing = 0, "It is not paused."
	}
	return of, nil
}

func previewForget(_ *request, c operate.ConsumerStatus) (plan, error) {
	of := plan{Question: "Forget " + c.Consumer + "?", Button: "Forget " + c.Consumer, Count: 1, Grave: true, Typed: true, Back: "./", Effects: []string{
		fmt.Sprintf("The cursors of %s are deleted, with %s unread or being retried. That cannot be taken back.",
			plural(c.Resources, "resource"), plural(c.LagTotal, "message")),
		"A consumer of this name would start as a new one. Start none while it is being forgotten.",
	}}
	switch {
	case c.Members > 0:
		of.Count, of.Nothing = 0, fmt.Sprintf("It has %s: stop its programs first, or take it out of them.", plural(c.Members, "live replica"))
	case c.DeadLetters > 0:
		of.Count, of.Nothing = 0, fmt.Sprintf("It has %s: look at them, then replay or purge them.", plural(c.DeadLetters, "dead letter"))
	}
	return of, nil
}

const noCursorHelp = "a stream runs again when it is announced again."

func isNoCursor(err error) bool { return errors.Is(err, operate.ErrNoCursor) }

package snippets

import "strings"

// snippet is a Go snippet and what stands around it.
type snippet struct {
	page, starts string
	with         string   // declarations beside it
	beside       []string // what other blocks of its page begin with that stand beside it; SQL is the constant migrations
	alone        bool     // names in it are those of another snippet
	statements   bool     // it is part of a function, and runs
	before       string   // statements above it
	after        string   // statements below it
	verify       string   // statements that see whether it did what it says
	redis        bool     // its address is that of a test's server
	why          string   // it is not compiled by itself, and why
}

// outbox is the table of docs/tables.md.
const outbox = `CREATE SCHEMA app;
CREATE TABLE app.outbox (
    xid xid8 DEFAULT pg_current_xact_id(),
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    channel text NOT NULL DEFAULT 'a', customer_id bigint, event text, status text NOT NULL DEFAULT 'ready');
CREATE TABLE app.shipment (outbox bigint);
`

// billing is the consumer of docs/testing.md.
const billing = `
//leasegen:event
type OrderPlaced struct {
	Customer string
	Cents    int64
}

//leasegen:consumer per=topic topics=orders.*
type Billing struct{}

func (*Billing) HandleOrderPlaced(ctx context.Context, tx pgx.Tx, m lease.Message[OrderPlaced]) error {
	_, err := tx.Exec(ctx, "INSERT INTO charge VALUES ($1, $2)", m.ID, m.Payload.Cents)
	return err
}
`

func snippets() []snippet {
	const (
		order     = `order := orders.OrderPlaced{Customer: "c7", Cents: 100}` + "\n"
		pool      = `pool := env.Pool(ctx, "CREATE TABLE charge (message text, cents bigint); CREATE TABLE orders (customer text, cents bigint)")` + "\n"
		be        = "be := leasepg.New(pool)\n_ = be\n"
		memory    = "be := leasemem.New()\n"
		publish   = "if err := orders.PublishOrderPlaced(ctx, be, \"orders.eu\", orders.OrderPlaced{Customer: \"c7\", Cents: 100}); err != nil {\nreturn err\n}\n"
		archived  = "ctx = env.Logged(ctx, \"order placed\")\n"
		published = "if err := env.One(ctx, pool, \"SELECT count(*) FROM leasegen.message WHERE kind = 'order.placed'\"); err != nil {\nreturn err\n}\n"
	)
	return []snippet{
		{page: "README.md", starts: "package main\n", why: "TestReadme makes a module of it"},
		{page: "docs/beyond.md", starts: "shards := []*leasepg.Backend{", statements: true,
			before: order + strings.ReplaceAll(pool, "pool :=", "first :=") + strings.ReplaceAll(pool, "pool :=", "second :=") +
				archived},
		{page: "docs/from/asynq.md", starts: "// ThumbnailDue was"},
		{page: "docs/from/election.md", starts: "// Sweeper removes"},
		{page: "docs/from/kcl.md", starts: "// Clicked was"},
		{page: "docs/from/outbox.md", starts: "// Dispatch was"},
		{page: "docs/from/pgoutbox.md", starts: "// RowChanged was"},
		{page: "docs/from/redis-stream-client-go.md", starts: "// SensorAdded was"},
		{page: "docs/from/river.md", starts: "// EmailDue was"},
		{page: "docs/from/watermill.md", starts: "//leasegen:event name=booking.made"},
		{page: "docs/from/watermill.md", starts: "//leasegen:consumer per=topic\n//leasegen:redis", alone: true,
			with: "\n//leasegen:event name=booking.made key=Guest\ntype BookingMade struct {\n\tGuest string `json:\"guest\"`\n}\n"},
		{page: "docs/generating.md", starts: "//go:generate", why: "TestCommands runs it"},
		{page: "docs/generating.md", starts: "package orders\n", alone: true},
		{page: "docs/generating.md", starts: "// PublishOrderPlaced appends", why: "it is compared with what is generated for the block before it"},
		{page: "docs/handlers.md", starts: "package orders\n", alone: true},
		{page: "docs/handlers.md", starts: "func (b *Billing) HandleOrderPlaced(ctx context.Context, tx pgx.Tx", alone: true, with: "\n//leasegen:consumer per=topic topics=orders.*\ntype Billing struct{}\n"},
		{page: "docs/handlers.md", starts: "//leasegen:consumer per=partition", with: "\nfunc (*Invoicing) HandleOrderPlaced(ctx context.Context, m lease.Message[orders.OrderPlaced]) error { return nil }\n"},
		{page: "docs/handlers.md", starts: "//leasegen:consumer per=stream input", with: "\nfunc (*Chat) HandleOrderPlaced(ctx context.Context, m lease.Message[orders.OrderPlaced]) error { return nil }\n"},
		{page: "docs/handlers.md", starts: "//leasegen:consumer per=stream poll"},
		{page: "docs/handlers.md", starts: "archive, err := orders.NewArchive(be", statements: true, before: memory + publish + archived},
		{page: "docs/handlers.md", starts: "g := lease.NewGroup()", statements: true, before: memory + publish + archived},
		{page: "docs/jobs.md", starts: "// Report writes", alone: true},
		{page: "docs/jobs.md", starts: "func TestReport(", alone: true, beside: []string{"// Report writes", "CREATE TABLE orders"}},
		{page: "docs/kubernetes.md", starts: "ctx, stop := signal.NotifyContext(", statements: true, before: memory + publish + archived +
			"archive, err := orders.NewArchive(be, &orders.Archive{Log: slog.Default()})\nif err != nil {\nreturn err\n}\n" +
			"group := lease.NewGroup()\nif err := group.Add(archive); err != nil {\nreturn err\n}\n"},
		{page: "docs/once.md", starts: "// Charge calls the bank.", with: "\n//leasegen:event name=payment.due\ntype PaymentDue struct {\n\tPaymentID string\n\tCents int64\n}\n"},
		{page: "docs/postgres.md", starts: "pool, err := pgxpool.New(", statements: true, before: "env.Pool(ctx, \"\").Close()\n",
			after: `return orders.PublishOrderPlaced(ctx, be, "orders.eu", orders.OrderPlaced{})`},
		{page: "docs/postgres.md", starts: "tx, err := pool.Begin(", statements: true, before: pool + be, verify: published},
		{page: "docs/observing.md", starts: "timed := func(next lease.CallFunc)", statements: true, before: pool,
			after: "if err != nil {\nreturn err\n}\n" + publish + "ctx = env.Logged(ctx, \"kind=order.placed messages=1\")\nreturn archive.Run(ctx)"},
		{page: "docs/observing.md", starts: "telemetry, err := leaseotel.New()", why: "leaseotel is a module of its own; its tests do the same"},
		{page: "docs/alerts.md", starts: "if _, err := telemetry.WatchHealth(group)", why: "leaseotel is a module of its own; its tests do the same"},
		{page: "docs/observing.md", starts: "mux := http.NewServeMux()", statements: true, before: "group := lease.NewGroup()\n", after: "_ = mux\nreturn nil"},
		{page: "docs/page.md", starts: "pages := leaseweb.New(be,", statements: true, before: memory,
			after: "page := httptest.NewRecorder()\nmux.ServeHTTP(page, httptest.NewRequest(\"GET\", \"/ops/\", nil))\n" +
				"if page.Code != 200 || server.Addr == \"\" {\nreturn errors.New(page.Body.String())\n}\nreturn nil"},
		{page: "docs/publishing.md", starts: "err := orders.PublishOrderPlaced(ctx, be,", statements: true, before: pool + be + order, after: "return err", verify: published},
		{page: "docs/publishing.md", starts: "err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {\n\tif _, err := tx.Exec(", statements: true,
			before: pool + be + order, after: "return err", verify: published},
		{page: "docs/publishing.md", starts: "db := stdlib.OpenDBFromPool(pool)", statements: true, before: pool + be + order, verify: published},
		{page: "docs/publishing.md", starts: "err := db.Transaction(", why: "GORM is no dependency; runtime/leasesql/sqltest does the same"},
		{page: "docs/publishing.md", starts: "to := lease.With(be.In(tx)", statements: true,
			before: pool + be + "tx, err := pool.Begin(ctx)\nif err != nil {\nreturn err\n}\ntenant, reminder := \"t1\", orders.ReminderDue{Order: 7}\n",
			after:  "if err != nil {\nreturn err\n}\nreturn tx.Commit(ctx)",
			verify: "if err := env.One(ctx, pool, \"SELECT count(*) FROM leasegen.delayed WHERE kind = 'reminder.due'\"); err != nil {\nreturn err\n}\n"},
		{page: "docs/publishing.md", starts: "ctx = lease.ContextWithTrace(", statements: true,
			before: "r, err := http.NewRequest(\"GET\", \"/\", nil)\nif err != nil {\nreturn err\n}\nr.Header.Set(\"traceparent\", \"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\")\n",
			after:  "if parent == \"\" || state != \"\" {\nreturn errors.New(\"no trace\")\n}\nreturn nil"},
		{page: "docs/publishing.md", starts: "err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {\n\tif err := leasepg.SingleWriter", statements: true,
			before: pool + "id := \"7\"\n", after: "return err"},
		{page: "docs/redis.md", starts: "client := redis.NewClient(", statements: true, redis: true, before: order + archived},
		{page: "docs/redis.md", starts: "addOnce := redis.NewScript(", statements: true,
			before: "client := redis.NewClient(&redis.Options{Addr: os.Getenv(\"REDIS_ADDR\")})\ndefer client.Close()\n" + order +
				"m := lease.Message[orders.OrderPlaced]{ID: \"1\", Payload: order}\n",
			verify: "m.ID = \"2\"\nfor range 2 {\nif err := run(); err != nil {\nreturn err\n}\n}\n" +
				"if sum, err := client.Get(ctx, \"{balance:c7}\").Int(); err != nil || sum != 200 {\nreturn fmt.Errorf(\"a sum of %d: %w\", sum, err)\n}\n"},
		{page: "docs/foreign-streams.md", starts: "// Orders takes what the shop writes.", with: "\ntype OrderPlaced = orders.OrderPlaced\n"},
		{page: "docs/foreign-streams.md", starts: "// Desk publishes", alone: true,
			with: "\n//leasegen:event key=Stream\ntype StreamAdded struct{ Stream string }\n"},
		{page: "docs/start.md", starts: "package main\n\nimport (\n\t\"context\"\n\n", why: "TestStart follows the page"},
		{page: "docs/start.md", starts: "package main\n\nimport (\n\t\"os\"\n", why: "TestStart follows the page"},
		{page: "docs/start.md", starts: "package main\n\nimport (\n\t\"context\"\n\t\"log\"\n", why: "TestStart follows the page"},
		{page: "docs/tables.md", starts: "// Shipping ships what is ready."},
		{page: "docs/testing.md", starts: "func TestArchive(", alone: true, with: `
//leasegen:event
type OrderPlaced struct {
	Customer string
	Cents    int64
}

//leasegen:consumer per=topic topics=orders.*
type Archive struct{}

func (*Archive) HandleOrderPlaced(ctx context.Context, m lease.Message[OrderPlaced]) error { return nil }
`},
		{page: "docs/testing.md", starts: "func TestBilling(", alone: true, with: billing},
		{page: "docs/testing.md", starts: "func TestCheckout(", alone: true, with: billing + `
type Shop struct {
	Pool    *pgxpool.Pool
	Backend *leasepg.Backend
}

func (s *Shop) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx := r.Context()
	err := pgx.BeginFunc(ctx, s.Pool, func(tx pgx.Tx) error {
		placed := OrderPlaced{Customer: r.FormValue("customer"), Cents: 100}
		if _, err := tx.Exec(ctx, "INSERT INTO orders VALUES ($1)", placed.Customer); err != nil {
			return err
		}
		return PublishOrderPlaced(ctx, s.Backend.In(tx), "orders.eu", placed)
	})
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.WriteHeader(http.StatusCreated)
}
`},
		{page: "docs/testing.md", starts: "var cut atomic.Bool", statements: true, after: publish + "cut.Store(true)\n" +
			"if err := orders.PublishOrderPlaced(ctx, be, \"orders.eu\", orders.OrderPlaced{}); err == nil {\nreturn errors.New(\"a call arrives\")\n}\nreturn nil"},
	}
}

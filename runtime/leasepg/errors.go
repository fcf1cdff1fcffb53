package leasepg

import (
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/leasegen/leasegen/runtime/backend"
)

// fail says what was tried, and adds the fix to causes that have a known one. Errors of
// the runtime pass as they are.
func (sv *server) fail(what string, err error) error {
	if err == nil || errors.Is(err, backend.ErrFenced) || errors.Is(err, backend.ErrSessionLost) {
		return err
	}
	if strings.HasPrefix(err.Error(), "leasepg: ") {
		return err // it has been said
	}
	if fix := sv.fix(err); fix != "" {
		return fmt.Errorf("leasepg: %s: %w; %s", what, err, fix)
	}
	return fmt.Errorf("leasepg: %s: %w", what, err)
}

// estranged makes ErrSessionLost of the refusal of leasegen.expect.
func estranged(err error) error {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == foreignHistory {
		return fmt.Errorf("%w: %s", backend.ErrSessionLost, pg.Message)
	}
	return err
}

// noStatement is the code of errors that a prepared statement does not exist.
const noStatement = "26000"

// noPrepared is the fix for the one setting that a pool needs behind such a pooler.
const noPrepared = "a transaction pooler that keeps no prepared statements is in between: add default_query_exec_mode=exec to the DSN"

// code is the SQLSTATE of a refusal by the server, through pgx or another driver; empty for other errors.
func code(err error) string {
	if refused, ok := errors.AsType[interface {
		error
		SQLState() string
	}](err); ok {
		return refused.SQLState()
	}
	return ""
}

func (sv *server) fix(err error) string {
	if _, ok := errors.AsType[*tableError](err); ok {
		return "" // it has been said
	}
	switch code(err) {
	case "3F000", "42P01", "42703", "42883": // schema, table, column, function is missing
		return "the schema " + sv.schema.name + " is missing or older than this program: run leasegen migrate"
	case "42501": // insufficient_privilege
		return "the role lacks a privilege: leasegen migrate -grants ROLE prints what it needs"
	case "55000": // object_not_in_prerequisite_state, of which recovery is one
		if strings.Contains(err.Error(), "recovery") {
			return "the server is a standby: connect to the primary (target_session_attrs=read-write)"
		}
	case "25006": // read_only_sql_transaction
		return "the server is read-only: connect to the primary (target_session_attrs=read-write)"
	case "25P02": // in_failed_sql_transaction
		return "an earlier statement of the transaction has failed, whose error says why: roll back"
	case noStatement, "42P05": // exists already
		return noPrepared
	case "53300": // too_many_connections
		return "the server is full: raise max_connections or lower the pools' sizes"
	}
	return ""
}

package sqlc

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// Node is a node of PostgreSQL's syntax tree, as sqlc prints it: fields, whose values are nodes, lists, texts, numbers
// and booleans. Its kind shows in its fields only.
type Node = map[string]any

// Condition returns what PostgreSQL's grammar makes of a condition. Problems say that it is none.
func (r *Runner) Condition(ctx context.Context, text string) (Node, error) {
	dir, err := os.MkdirTemp("", "leasegen-sqlc-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "condition.sql")
	// Brackets of two kinds: what closes them and opens others is either an error, or shows in the tree.
	if err := os.WriteFile(file, []byte("SELECT 1 WHERE (ARRAY["+text+"])[1]"), 0o600); err != nil {
		return nil, err
	}
	out, err := r.run(ctx, "parse", "--dialect", "postgresql", file)
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		_, syntax, ok := strings.Cut(err.Error(), "parse error: ")
		if !ok {
			return nil, err
		}
		syntax, _, _ = strings.Cut(syntax, "\n")
		return nil, Problems{{Message: syntax}}
	}
	var tree struct {
		Stmt struct {
			WhereClause struct {
				Arg struct {
					Elements struct{ Items []Node }
				}
				Indirection struct{ Items []Node }
			}
		}
	}
	d := json.NewDecoder(bytes.NewReader(out))
	if err := d.Decode(&tree); err != nil {
		return nil, fmt.Errorf("sqlc's syntax tree: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, Problems{{Message: "the condition is more than one statement"}}
	}
	where := tree.Stmt.WhereClause
	if len(where.Arg.Elements.Items) != 1 || len(where.Indirection.Items) != 1 {
		return nil, Problems{{Message: "the condition is not one expression"}}
	}
	return where.Arg.Elements.Items[0], nil
}

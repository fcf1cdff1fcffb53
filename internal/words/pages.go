package words

import (
	"fmt"
	"path/filepath"
)

// Pages are README.md, its neighbours, and docs, as paths from the root.
func Pages(root string) (names []string, err error) {
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/from/*.md"} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", pattern, err)
		}
		if len(found) < 4 {
			return nil, fmt.Errorf("list %s: %d pages, at least 4 are there; is %s the root of the tree?", pattern, len(found), root)
		}
		for _, f := range found {
			rel, err := filepath.Rel(root, f)
			if err != nil {
				return nil, fmt.Errorf("list %s: %w", pattern, err)
			}
			names = append(names, filepath.ToSlash(rel))
		}
	}
	return names, nil
}

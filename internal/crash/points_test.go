// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build failpoints && linux

package crash

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/failpoint"
)

// declared returns every failpoint of the checkout, from the source: the
// constants of the type Point.
func declared(t *testing.T) []failpoint.Point {
	t.Helper()
	var points []failpoint.Point
	root := "../.."
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != root && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata"):
			return filepath.SkipDir
		case d.IsDir(), !strings.HasSuffix(path, ".go"), strings.HasSuffix(path, "_test.go"):
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok || len(spec.Values) != 1 {
				return true
			}
			kind, ok := spec.Type.(*ast.SelectorExpr)
			value, literal := spec.Values[0].(*ast.BasicLit)
			if ok && literal && kind.Sel.Name == "Point" {
				name, err := strconv.Unquote(value.Value)
				if err != nil {
					t.Error(path, err)
				}
				points = append(points, failpoint.Point(name))
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(points)
	return points
}

var pointName = regexp.MustCompile(`^[a-z]+(\.[a-z]+){2,3}$`)

// The names are a closed set that a reader can find: each once, in one form.
func TestPoints(t *testing.T) {
	points := declared(t)
	if len(points) < 40 {
		t.Errorf("only %d failpoints were found: the test looks at the wrong folder", len(points))
	}
	for i, p := range points {
		if !pointName.MatchString(string(p)) && strings.Count(string(p), ".") != 1 {
			t.Errorf("%s is not named part.act.moment", p)
		}
		if i > 0 && points[i-1] == p {
			t.Errorf("%s is declared twice", p)
		}
	}
}

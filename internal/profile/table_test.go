// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package profile

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// The table has the shape of the type that it fills: same keys, same kinds,
// so that a checked document always decodes.
func TestTableHasTheShapeOfTheProfile(t *testing.T) {
	sameShape(t, "", reflect.TypeFor[sdk.Profile](), document())
}

func sameShape(t *testing.T, path string, typ reflect.Type, n *node) {
	t.Helper()
	if typ.Kind() == reflect.Pointer {
		typ = typ.Elem()
	}
	want := map[reflect.Kind]kind{
		reflect.String: kindString, reflect.Bool: kindBool, reflect.Int: kindInteger, reflect.Int64: kindInteger,
		reflect.Float64: kindNumber, reflect.Slice: kindList, reflect.Map: kindObject, reflect.Struct: kindObject,
	}[typ.Kind()]
	if n.is != want {
		t.Errorf("%s is %s in the table, %s in the type", path, n.is, want)
		return
	}
	switch typ.Kind() {
	case reflect.Slice, reflect.Map:
		if n.elements == nil {
			// The features are spelled out in the table.
			if typ != reflect.TypeFor[map[sdk.Feature]sdk.Class]() {
				t.Errorf("%s has no elements in the table", path)
			}
			return
		}
		sameShape(t, path+"[]", typ.Elem(), n.elements)
	case reflect.Struct:
		var keys []string
		for i := range typ.NumField() {
			key, _, _ := strings.Cut(typ.Field(i).Tag.Get("json"), ",")
			keys = append(keys, key)
			inner, found := n.keysOf()[key]
			if !found {
				t.Errorf("%s is not in the table", join(path, key))
				continue
			}
			sameShape(t, join(path, key), typ.Field(i).Type, inner)
		}
		for _, name := range n.names() {
			if !slices.Contains(keys, name) {
				t.Errorf("%s is not in the type", join(path, name))
			}
		}
	}
}

// Every attribute is described.
func TestTableDescribesEveryAttribute(t *testing.T) {
	var walk func(path string, n *node)
	walk = func(path string, n *node) {
		for i := range n.fields {
			f := &n.fields[i]
			at := join(path, f.key)
			if f.description == "" {
				t.Errorf("%s has no description", at)
			}
			walk(at, &f.node)
		}
		if n.elements != nil {
			walk(path+"[]", n.elements)
		}
	}
	walk("", document())
}

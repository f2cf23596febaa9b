// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package profile

import (
	"cmp"
	"maps"
	"math/big"
	"slices"
	"strconv"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/config/plainhcl"
)

// readHCL reads an HCL document into a tree: bare attributes, or one block
// `profile "NAME" { … }` of them.
func readHCL(b *builder, content []byte) *value {
	body, faults := plainhcl.Parse(b.file, content, plainhcl.Options{})
	if len(faults) > 0 {
		b.faults = append(b.faults, faults...)
		return nil
	}
	r := hclReader{builder: b}
	if len(body.Blocks) == 0 {
		return r.attributes(body, place{1, 1}, map[string]place{})
	}
	block := body.Blocks[0]
	at := hclPlace(block.TypeRange)
	switch {
	case block.Type != "profile":
		b.add(at, "", "a block %.80q is not wanted here: write %.80s = { … }", block.Type, block.Type)
	case len(block.Labels) != 1:
		b.add(at, "", "a profile block has one label, its name")
	case len(body.Blocks) > 1:
		b.add(hclPlace(body.Blocks[1].TypeRange), "", "a second block: one file holds one profile")
	case len(body.Attributes) > 0:
		b.add(at, "", "attributes stand within the block or without one, not both")
	case len(block.Body.Blocks) > 0:
		inner := block.Body.Blocks[0]
		b.add(hclPlace(inner.TypeRange), inner.Type, "a block is not wanted here: write %.80s = { … }", inner.Type)
	default:
		label := hclPlace(block.LabelRanges[0])
		name := member{key: "name", at: label, value: &value{kind: kindString, at: label, text: block.Labels[0]}}
		object := r.attributes(block.Body, at, map[string]place{"name": label})
		if object != nil {
			object.object = append(object.object, name)
		}
		return object
	}
	return nil
}

type hclReader struct{ *builder }

func hclPlace(at hcl.Range) place { return place{at.Start.Line, at.Start.Column} }

func (r *hclReader) attributes(body *hclsyntax.Body, at place, seen map[string]place) *value {
	object := &value{kind: kindObject, at: at}
	byPlace := slices.SortedFunc(maps.Values(body.Attributes), func(a, b *hclsyntax.Attribute) int {
		return cmp.Compare(a.NameRange.Start.Byte, b.NameRange.Start.Byte)
	})
	for _, attribute := range byPlace {
		element := r.value(attribute.Expr, 2)
		if element == nil {
			return nil
		}
		r.put(object, seen, member{key: attribute.Name, at: hclPlace(attribute.NameRange), value: element})
	}
	return object
}

// value reads one expression; nil means that a fault has been reported.
func (r *hclReader) value(expr hclsyntax.Expression, depth int) *value {
	at := hclPlace(expr.Range())
	if !r.grow(at, depth) {
		return nil
	}
	switch e := expr.(type) {
	case *hclsyntax.ObjectConsExpr:
		object := &value{kind: kindObject, at: at}
		seen := map[string]place{}
		for _, item := range e.Items {
			key := r.scalar(item.KeyExpr)
			if key == nil {
				return nil
			}
			element := r.value(item.ValueExpr, depth+1)
			if element == nil {
				return nil
			}
			r.put(object, seen, member{key: key.text, at: key.at, value: element})
		}
		return object
	case *hclsyntax.TupleConsExpr:
		list := &value{kind: kindList, at: at}
		for _, child := range e.Exprs {
			element := r.value(child, depth+1)
			if element == nil {
				return nil
			}
			list.list = append(list.list, element)
		}
		return list
	}
	return r.scalar(expr)
}

// scalar evaluates an expression that holds no other.
func (r *hclReader) scalar(expr hclsyntax.Expression) *value {
	at := hclPlace(expr.Range())
	switch expr.(type) {
	case *hclsyntax.LiteralValueExpr, *hclsyntax.TemplateExpr, *hclsyntax.ObjectConsKeyExpr, *hclsyntax.UnaryOpExpr:
	default:
		r.add(at, "", "only plain values are wanted here: put text in quotes")
		return nil
	}
	result, diags := expr.Value(nil)
	if diags.HasErrors() {
		r.faults = append(r.faults, plainhcl.Faults(r.file, diags)...)
		return nil
	}
	switch {
	case result.IsNull():
		return &value{kind: kindNull, at: at, text: "null"}
	case result.Type() == cty.String:
		return &value{kind: kindString, at: at, text: result.AsString()}
	case result.Type() == cty.Bool:
		return &value{kind: kindBool, at: at, truth: result.True(), text: "true"}
	case result.Type() == cty.Number:
		// Text would write out every digit of 1e999999999.
		number := result.AsBigFloat()
		if integer, accuracy := number.Int64(); accuracy == big.Exact {
			return numberOf(strconv.FormatInt(integer, 10), at)
		}
		float, _ := number.Float64()
		return numberOf(strconv.FormatFloat(float, 'g', -1, 64), at)
	}
	r.add(at, "", "%s is not wanted here", result.Type().FriendlyName())
	return nil
}

// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

// Package plainhcl parses HCL that holds values and nothing that computes:
// no references, operators, conditions, loops or interpolation. A hostile
// file then costs no more than its size.
package plainhcl

import (
	"fmt"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/config/fault"
)

// maxDepth bounds how deep brackets nest. HCL's parser is recursive, and a Go
// stack that overflows ends the program.
const maxDepth = 64

// maxSize bounds a file, in bytes: its tokens take a hundred times as much.
const maxSize = 1 << 20

// Options say what a file may hold besides plain values.
type Options struct {
	Calls bool // function calls, as in jsonencode({ … })
}

// Parse returns the body of a file, or its faults.
func Parse(file string, content []byte, opts Options) (*hclsyntax.Body, fault.Faults) {
	if len(content) > maxSize {
		return nil, fault.Faults{{File: file, Message: fmt.Sprintf("larger than %d MiB, which is the most in HCL", maxSize>>20)}}
	}
	tokens, diags := hclsyntax.LexConfig(content, file, hcl.InitialPos)
	if diags.HasErrors() {
		return nil, Faults(file, diags)
	}
	if at, problem := scan(tokens, opts); problem != "" {
		return nil, fault.Faults{{File: file, Line: at.Start.Line, Column: at.Start.Column, Message: problem}}
	}
	parsed, diags := hclsyntax.ParseConfig(content, file, hcl.InitialPos)
	if diags.HasErrors() {
		return nil, Faults(file, diags)
	}
	// ParseConfig always gives a body of its own syntax.
	body, _ := parsed.Body.(*hclsyntax.Body)
	return body, nil
}

// Faults returns HCL's diagnostics as faults.
func Faults(file string, diags hcl.Diagnostics) fault.Faults {
	var faults fault.Faults
	for _, diag := range diags {
		at := hcl.InitialPos
		if diag.Subject != nil {
			at = diag.Subject.Start
		}
		faults = append(faults, fault.Fault{File: file, Line: at.Line, Column: at.Column, Message: fmt.Sprintf("%s: %s", diag.Summary, diag.Detail)})
	}
	return faults
}

// scan returns the first token that a plain file does not hold.
func scan(tokens hclsyntax.Tokens, opts Options) (hcl.Range, string) {
	depth := 0
	var before hclsyntax.TokenType
	for _, token := range tokens {
		switch token.Type {
		case hclsyntax.TokenOBrace, hclsyntax.TokenOBrack, hclsyntax.TokenOParen:
			if depth++; depth > maxDepth {
				return token.Range, fmt.Sprintf("nested deeper than %d", maxDepth)
			}
			if token.Type == hclsyntax.TokenOParen && !opts.Calls {
				return token.Range, "only plain values are wanted here, no function calls"
			}
		case hclsyntax.TokenCBrace, hclsyntax.TokenCBrack, hclsyntax.TokenCParen:
			depth--
		case hclsyntax.TokenTemplateInterp, hclsyntax.TokenTemplateControl:
			return token.Range, "only plain values are wanted here, no interpolation: write $${ or %%{ for the characters themselves"
		case hclsyntax.TokenMinus:
			if before == hclsyntax.TokenMinus {
				return token.Range, "only plain values are wanted here, no operators"
			}
		case hclsyntax.TokenEqual, hclsyntax.TokenColon, hclsyntax.TokenComma, hclsyntax.TokenNewline, hclsyntax.TokenEOF,
			hclsyntax.TokenComment, hclsyntax.TokenIdent, hclsyntax.TokenNumberLit, hclsyntax.TokenStringLit,
			hclsyntax.TokenOQuote, hclsyntax.TokenCQuote, hclsyntax.TokenQuotedLit, hclsyntax.TokenOHeredoc, hclsyntax.TokenCHeredoc:
		default:
			return token.Range, fmt.Sprintf("only plain values are wanted here, not %.20q", token.Bytes)
		}
		if token.Type == hclsyntax.TokenIdent && string(token.Bytes) == "for" && (before == hclsyntax.TokenOBrace || before == hclsyntax.TokenOBrack) {
			return token.Range, "only plain values are wanted here, no for expressions"
		}
		if token.Type != hclsyntax.TokenNewline && token.Type != hclsyntax.TokenComment {
			before = token.Type
		}
	}
	return hcl.Range{}, ""
}

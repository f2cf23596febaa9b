// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/terraform-plugin-framework/attr"
	"github.com/hashicorp/terraform-plugin-framework/function"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/sandbox"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

func TestFunctions(t *testing.T) {
	created := time.Date(2026, 3, 1, 12, 0, 0, 5e6, time.UTC)
	id := sandbox.NewID(created)
	number := func(f float64) attr.Value { return types.NumberValue(big.NewFloat(f)) }
	cases := []struct {
		function  string
		arguments []string
		want      attr.Value
		fault     string // part of the error
	}{
		{"duration_seconds", []string{"1h30m"}, number(5400), ""},
		{"duration_seconds", []string{"1.5s"}, number(1.5), ""},
		{"duration_seconds", []string{"soon"}, nil, "not a duration"},
		{"duration_seconds", []string{"-1h"}, nil, "not longer than zero"},
		{"expires_in", []string{"2026-03-01T13:00:00Z", "2026-03-01T12:00:00Z"}, number(3600), ""},
		{"expires_in", []string{"2026-03-01T12:00:00+01:00", "2026-03-01T12:00:00Z"}, number(-3600), ""},
		{"expires_in", []string{"2026-03-01T12:00:00Z", "now"}, nil, "RFC 3339"},
		{"parse_sandbox_id", []string{id}, parsed("", id, "2026-03-01T12:00:00.005Z"), ""},
		{"parse_sandbox_id", []string{"build/one/" + id}, parsed("build/one", id, "2026-03-01T12:00:00.005Z"), ""},
		{"parse_sandbox_id", []string{"snp-" + id[4:]}, nil, "not a sandbox id"},
		{"profile_revision", []string{`{"name": "x", "on_expiry": "destroy"}`}, types.StringValue(sandbox.Revision(sdk.Profile{Name: "x"})), ""},
		{"profile_revision", []string{`{"name": "x", "colour": "red"}`}, nil, "colour"},
	}
	for _, c := range cases {
		got, failed := call(t, c.function, c.arguments)
		switch {
		case c.fault != "":
			if failed == nil || failed.FunctionArgument == nil || !strings.Contains(failed.Text, c.fault) {
				t.Errorf("%s(%q): the error %v is not about its argument, or lacks %q", c.function, c.arguments, failed, c.fault)
			}
		case failed != nil || !got.Equal(c.want):
			t.Errorf("%s(%q) = %v, %v; want %v", c.function, c.arguments, got, failed, c.want)
		}
	}
}

func parsed(backend, id, created string) attr.Value {
	return types.ObjectValueMust(parsedID, map[string]attr.Value{
		"backend": types.StringValue(backend), "id": types.StringValue(id), "created_at": types.StringValue(created),
	})
}

func call(t *testing.T, name string, arguments []string) (attr.Value, *function.FuncError) {
	t.Helper()
	for _, f := range functions() {
		if f.name != name {
			continue
		}
		values := make([]attr.Value, 0, len(arguments))
		for _, argument := range arguments {
			values = append(values, types.StringValue(argument))
		}
		empty, failed := f.definition.Return.NewResultData(t.Context())
		if failed != nil {
			t.Fatal(failed)
		}
		resp := function.RunResponse{Result: empty}
		f.Run(t.Context(), function.RunRequest{Arguments: function.NewArgumentsData(values)}, &resp)
		return resp.Result.Value(), resp.Error
	}
	t.Fatalf("there is no function %s", name)
	return nil, nil
}

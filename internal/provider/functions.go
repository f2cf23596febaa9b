// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"time"

	"github.com/hashicorp/terraform-plugin-framework/attr"
	"github.com/hashicorp/terraform-plugin-framework/function"
	"github.com/hashicorp/terraform-plugin-framework/provider"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/sandbox"
)

var _ provider.ProviderWithFunctions = (*Provider)(nil)

// Functions lists the functions. Each is a value of its arguments alone:
// Terraform calls a function at plan and at apply and refuses two answers.
func (p *Provider) Functions(context.Context) []func() function.Function {
	var made []func() function.Function
	for _, f := range functions() {
		made = append(made, func() function.Function { return f })
	}
	return made
}

// valueFunction is a function of texts.
type valueFunction struct {
	name       string
	definition function.Definition
	run        func(arguments []string) (result any, failed *function.FuncError)
}

// Metadata names the function.
func (f valueFunction) Metadata(_ context.Context, _ function.MetadataRequest, resp *function.MetadataResponse) {
	resp.Name = f.name
}

// Definition describes the function.
func (f valueFunction) Definition(_ context.Context, _ function.DefinitionRequest, resp *function.DefinitionResponse) {
	resp.Definition = f.definition
}

// Run calls the function.
func (f valueFunction) Run(ctx context.Context, req function.RunRequest, resp *function.RunResponse) {
	arguments := make([]string, len(f.definition.Parameters))
	for i := range arguments {
		if resp.Error = req.Arguments.GetArgument(ctx, i, &arguments[i]); resp.Error != nil {
			return
		}
	}
	result, failed := f.run(arguments)
	if resp.Error = failed; failed == nil {
		resp.Error = resp.Result.Set(ctx, result)
	}
}

func text(name, description string) function.Parameter {
	return function.StringParameter{Name: name, MarkdownDescription: description}
}

// parsedID are the attributes of what parse_sandbox_id returns.
var parsedID = map[string]attr.Type{"backend": types.StringType, "id": types.StringType, "created_at": types.StringType}

func functions() []valueFunction {
	return []valueFunction{
		{
			name: "duration_seconds",
			definition: function.Definition{
				Summary:             "Seconds of a duration",
				MarkdownDescription: "Returns the seconds of a Go duration such as `\"1h30m\"`, as used for `ttl`. A duration that is not longer than zero is an error.",
				Parameters:          []function.Parameter{text("duration", "Go duration, for example `\"45m\"`.")},
				Return:              function.NumberReturn{},
			},
			run: func(arguments []string) (any, *function.FuncError) {
				d, err := sandbox.ParseDuration(arguments[0])
				return d.Seconds(), argumentError(err)
			},
		},
		{
			name: "expires_in",
			definition: function.Definition{
				Summary: "Seconds that are left until a deadline",
				MarkdownDescription: "Returns the seconds from a time to a deadline, negative once it has passed. The time is an argument, since a function must give the same answer at plan and at apply: " +
					"pass `plantimestamp()` for the time of the plan.",
				Parameters: []function.Parameter{
					text("expires_at", "Deadline in RFC 3339, as in the attribute of that name."),
					text("now", "Time in RFC 3339, for example `plantimestamp()`."),
				},
				Return: function.NumberReturn{},
			},
			run: func(arguments []string) (any, *function.FuncError) {
				var at [2]time.Time
				for i := range at {
					var err error
					if at[i], err = time.Parse(time.RFC3339, arguments[i]); err != nil {
						return nil, function.NewArgumentFuncError(int64(i), "not a time in RFC 3339, for example 2026-03-01T12:00:00Z")
					}
				}
				return at[0].Sub(at[1]).Seconds(), nil
			},
		},
		{
			name: "parse_sandbox_id",
			definition: function.Definition{
				Summary: "Parts of a sandbox id",
				MarkdownDescription: "Takes a sandbox id, or the import id `BACKEND/ID`, apart: an object of `backend` (empty when there is none), `id` and `created_at`, " +
					"the creation time that each id carries. Anything else is an error.",
				Parameters: []function.Parameter{text("id", "`sbx-…` or `BACKEND/sbx-…`.")},
				Return:     function.ObjectReturn{AttributeTypes: parsedID},
			},
			run: func(arguments []string) (any, *function.FuncError) {
				backend, id := splitImport(arguments[0])
				if err := sandbox.ParseID(id); err != nil {
					return nil, argumentError(err)
				}
				created, err := sandbox.IDTime(id)
				if err != nil {
					return nil, argumentError(err)
				}
				// The types are those of parsedID.
				return types.ObjectValueMust(parsedID, map[string]attr.Value{
					"backend": types.StringValue(backend), "id": types.StringValue(id), "created_at": types.StringValue(created.Format(time.RFC3339Nano)),
				}), nil
			},
		},
		{
			name: "profile_revision",
			definition: function.Definition{
				Summary: "Revision of a profile document",
				MarkdownDescription: "Returns the revision of a profile document, `sha256:…`: the digest of its canonical form. Two documents that mean the same have one revision. " +
					"A document that is no valid profile is an error.",
				Parameters: []function.Parameter{text("document", "Profile in JSON, as in `sandboxer_profile.document`; `jsonencode` makes one.")},
				Return:     function.StringReturn{},
			},
			run: func(arguments []string) (any, *function.FuncError) {
				p, err := sandbox.ParseDocument(arguments[0])
				return sandbox.Revision(p), argumentError(err)
			},
		},
	}
}

// argumentError puts an error on the only argument.
func argumentError(err error) *function.FuncError {
	if err == nil {
		return nil
	}
	return function.NewArgumentFuncError(0, err.Error())
}

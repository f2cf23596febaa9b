// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"time"

	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
)

// positive refuses a duration that is not longer than zero. That the text is
// a duration at all is the type's business.
type positive struct{}

func (positive) Description(context.Context) string         { return "longer than zero" }
func (positive) MarkdownDescription(context.Context) string { return "longer than zero" }

func (positive) ValidateString(_ context.Context, req validator.StringRequest, resp *validator.StringResponse) {
	if req.ConfigValue.IsNull() || req.ConfigValue.IsUnknown() {
		return
	}
	if d, err := time.ParseDuration(req.ConfigValue.ValueString()); err == nil && d <= 0 {
		resp.Diagnostics.AddAttributeError(req.Path, "Invalid duration",
			req.ConfigValue.ValueString()+" is not longer than zero. Leave the attribute out for its default.")
	}
}

// filled refuses an empty text: an attribute that is not wanted is left out.
type filled struct{}

func (filled) Description(context.Context) string         { return "not empty" }
func (filled) MarkdownDescription(context.Context) string { return "not empty" }

func (filled) ValidateString(_ context.Context, req validator.StringRequest, resp *validator.StringResponse) {
	if !req.ConfigValue.IsNull() && !req.ConfigValue.IsUnknown() && req.ConfigValue.ValueString() == "" {
		resp.Diagnostics.AddAttributeError(req.Path, "Empty value", "The value is empty. Leave the attribute out instead.")
	}
}

// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"fmt"
	"time"

	"github.com/hashicorp/terraform-plugin-framework-timetypes/timetypes"
	"github.com/hashicorp/terraform-plugin-framework/attr"
	"github.com/hashicorp/terraform-plugin-framework/attr/xattr"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/types/basetypes"
	"github.com/hashicorp/terraform-plugin-go/tftypes"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/sandbox"
)

// durationType is a Go duration that refuses another text in the words of the
// command line. The framework's own type recommends negative ones.
type durationType struct{ timetypes.GoDurationType }

// duration is a value of [durationType].
type duration struct{ timetypes.GoDuration }

var (
	_ basetypes.StringTypable                    = durationType{}
	_ basetypes.StringValuableWithSemanticEquals = duration{}
	_ xattr.ValidateableAttribute                = duration{}
)

func (durationType) String() string { return "durationType" }

func (durationType) ValueType(context.Context) attr.Value { return duration{} }

func (t durationType) Equal(o attr.Type) bool {
	other, ok := o.(durationType)
	return ok && t.GoDurationType.Equal(other.GoDurationType)
}

func (durationType) ValueFromString(_ context.Context, in basetypes.StringValue) (basetypes.StringValuable, diag.Diagnostics) {
	return duration{timetypes.GoDuration{StringValue: in}}, nil
}

func (t durationType) ValueFromTerraform(ctx context.Context, in tftypes.Value) (attr.Value, error) {
	value, err := t.GoDurationType.ValueFromTerraform(ctx, in)
	if err != nil {
		return nil, err
	}
	known, ok := value.(timetypes.GoDuration)
	if !ok {
		return nil, fmt.Errorf("unexpected value of type %T", value)
	}
	return duration{known}, nil
}

func (duration) Type(context.Context) attr.Type { return durationType{} }

func (d duration) Equal(o attr.Value) bool {
	other, ok := o.(duration)
	return ok && d.GoDuration.Equal(other.GoDuration)
}

// StringSemanticEquals tells whether two texts are the same duration.
func (d duration) StringSemanticEquals(ctx context.Context, o basetypes.StringValuable) (bool, diag.Diagnostics) {
	if other, ok := o.(duration); ok {
		o = other.GoDuration
	}
	return d.GoDuration.StringSemanticEquals(ctx, o)
}

// ValidateAttribute refuses what is no duration. One that is not longer than
// zero is the business of [positive].
func (d duration) ValidateAttribute(_ context.Context, req xattr.ValidateAttributeRequest, resp *xattr.ValidateAttributeResponse) {
	if d.IsNull() || d.IsUnknown() {
		return
	}
	if _, err := time.ParseDuration(d.ValueString()); err != nil {
		_, err = sandbox.ParseDuration(d.ValueString())
		resp.Diagnostics.AddAttributeError(req.Path, "Invalid duration", sentence(err.Error()))
	}
}

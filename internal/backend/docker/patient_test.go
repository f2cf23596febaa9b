// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package docker

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/moby/moby/client"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/sshtransport"
)

// flaky is an engine that answers lists with errors first.
type flaky struct {
	engine
	asked  int
	errors []error
}

func (f *flaky) ContainerList(context.Context, client.ContainerListOptions) (client.ContainerListResult, error) {
	f.asked++
	if f.asked <= len(f.errors) {
		return client.ContainerListResult{}, f.errors[f.asked-1]
	}
	return client.ContainerListResult{}, nil
}

// A question whose connection was lost is asked once more, and no other.
func TestPatient(t *testing.T) {
	lost, other := fmt.Errorf("list: %w", sshtransport.ErrLost), errors.New("no such thing")
	ended, end := context.WithCancel(t.Context())
	end()
	for name, c := range map[string]struct {
		ctx    context.Context
		errors []error
		asked  int
		want   error
	}{
		"well":         {t.Context(), nil, 1, nil},
		"lost":         {t.Context(), []error{lost}, 2, nil},
		"lost twice":   {t.Context(), []error{lost, lost}, 2, lost},
		"other":        {t.Context(), []error{other}, 1, other},
		"caller ended": {ended, []error{lost}, 1, lost},
	} {
		f := &flaky{errors: c.errors}
		if _, err := (patient{f}).ContainerList(c.ctx, client.ContainerListOptions{}); !errors.Is(err, c.want) || f.asked != c.asked {
			t.Errorf("%s: asked %d times, %v", name, f.asked, err)
		}
	}
}

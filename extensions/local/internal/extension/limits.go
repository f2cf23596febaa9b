//go:build linux

package extension

import (
	"context"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

func (p *plan) limits(opts sdk.CreateOptions) error {
	l := opts.Profile.Limits
	if l == nil {
		return nil
	}
	if l.Wall != "" {
		wall, err := time.ParseDuration(l.Wall)
		if err != nil || wall <= 0 {
			return sdk.Invalid("limits.wall", "%q is not a duration longer than zero", clip(l.Wall))
		}
		p.wall = wall
	}
	if l.Disk != "" {
		size, err := parseSize(l.Disk)
		if err != nil {
			return sdk.Invalid("limits.disk", "%v", err)
		}
		p.config.Disk = size
	}
	return nil
}

func removeCgroup(context.Context, string) error { return nil }

func joinCgroups([]string) func(int) error { return nil }

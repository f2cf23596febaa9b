//go:build linux

package extension

import (
	"context"
	"os"
	"strings"

	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/guest"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// source is what a sandbox's root is made from.
type source struct {
	path   string // image file; empty is the host's own root
	digest string
	config imageConfig
	passwd string // user database of an image
	group  string
}

// imageConfig is what an image says about the processes in it.
type imageConfig struct {
	Env     map[string]string
	Workdir string
	User    string
}

func (e *Extension) source(ctx context.Context, opts sdk.CreateOptions, from *origin) (source, error) {
	if opts.Profile.Image == "" {
		return source{}, nil
	}
	return source{}, sdk.Unsupported("image", "not yet")
}

// user resolves the main process's user in the root's own database.
func (s source) user(name string) (guest.User, error) {
	if name == "" || name == "root" || name == "0" || name == "0:0" {
		return guest.User{Home: "/root"}, nil
	}
	passwd, group := s.passwd, s.group
	if s.path == "" {
		data, _ := os.ReadFile("/etc/passwd")
		passwd = string(data)
		data, _ = os.ReadFile("/etc/group")
		group = string(data)
	}
	return guest.ResolveUser(name, strings.NewReader(passwd), strings.NewReader(group))
}

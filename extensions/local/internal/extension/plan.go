// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package extension

// From a profile to what a supervisor is told. Everything that can be refused
// is refused here, before anything exists.

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/cgroup"
	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/egress"
	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/guest"
	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/record"
	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/runsc"
	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/supervisor"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// plan is a sandbox that is about to be made.
type plan struct {
	config      supervisor.Config
	digest      string // of the program
	gvisor      string
	image       string // digest
	imageEnv    map[string]string
	home        string
	wall        time.Duration
	portNames   []string
	hostPorts   []int
	listeners   []*os.File
	cgroups     []string
	groups      cgroup.Groups
	hard        cgroup.Limits // what the groups hold
	snapshotID  string
	snapshotDir *os.File
	held        []interface{ Close() } // in use, until the record says so
}

func (p *plan) close() {
	for _, f := range p.listeners {
		f.Close()
	}
	if p.snapshotDir != nil {
		p.snapshotDir.Close()
	}
	for _, h := range p.held {
		h.Close()
	}
}

// The bounds of what a create may carry.
const (
	maxSecrets  = 4 << 20
	maxFiles    = 32 << 20
	secretsDir  = "/run/secrets"
	defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)

func validEnv(name string) bool { return name != "" && !strings.ContainsAny(name, "=\x00") }

// egressOf returns the profile's egress policy.
func egressOf(p sdk.Profile) string {
	if p.Network == nil || p.Network.Egress == "" {
		return sdk.EgressNone
	}
	return p.Network.Egress
}

// validateCreate refuses what this backend can't do, on the attribute. What a
// snapshot was first made from does not matter to who restores it.
func (e *Extension) validateCreate(opts sdk.CreateOptions, restores bool) error {
	p := opts.Profile
	if err := opts.Check(e.now()); err != nil {
		return err
	}
	switch {
	case restores:
	case p.Build != nil:
		return sdk.Unsupported("build", "the local backend builds no images; it takes an OCI layout, an archive or a root filesystem by path")
	case p.Compose != nil:
		return sdk.Unsupported("compose", "the local backend runs no Compose projects")
	case p.Machine != nil:
		return sdk.Unsupported("machine", "the local backend runs no machine images")
	case p.Template != "":
		return sdk.Unsupported("template", "the local backend has no templates")
	}
	if err := validateEnd(opts); err != nil {
		return err
	}
	if p.Runtime != "" {
		return sdk.Unsupported("runtime", "the runtime of the local backend is always gVisor; leave %q out", clip(p.Runtime))
	}
	switch egressOf(p) {
	case sdk.EgressNone, sdk.EgressOpen:
	case sdk.EgressDeny:
		if err := egress.Validate(p.Network.Allow); err != nil {
			return err
		}
	default:
		return sdk.Invalid("network.egress", "%q is none of deny, open and none", clip(p.Network.Egress))
	}
	switch p.Publish {
	case "", "loopback", "host":
	default:
		return sdk.Invalid("publish", "%q is neither loopback nor host", clip(p.Publish))
	}
	for name, port := range p.Ports {
		if !sdk.IsName(name, 64) {
			return sdk.Invalid("ports", "%q is not a port's name", clip(name))
		}
		if port < 1 || port > 65535 {
			return sdk.Invalid("ports."+name, "%d is not a port", port)
		}
	}
	if p.Workdir != "" && !path.IsAbs(p.Workdir) {
		return sdk.Invalid("workdir", "%q is not an absolute path", clip(p.Workdir))
	}
	for i, arg := range p.Command {
		if strings.ContainsRune(arg, 0) || i == 0 && arg == "" {
			return sdk.Invalid(fmt.Sprintf("command[%d]", i), "is empty or holds a zero byte")
		}
	}
	return validateContent(opts)
}

func validateContent(opts sdk.CreateOptions) error {
	for path, env := range map[string]map[string]string{"profile.env": opts.Profile.Env, "env": opts.Env} {
		for name, value := range env {
			if !validEnv(name) || strings.ContainsRune(value, 0) {
				return sdk.Invalid(path, "%q is not a variable that a process can have", clip(name))
			}
		}
	}
	size := 0
	for name, value := range opts.Secrets {
		if !sdk.IsName(name, 128) {
			return sdk.Invalid("secrets", "%q is not a secret's name: letters, digits, _ . and - make one", clip(name))
		}
		size += len(value)
	}
	if size > maxSecrets {
		return sdk.Invalid("secrets", "%d bytes, and %d is the most", size, maxSecrets)
	}
	size = 0
	for name, file := range opts.Profile.Files {
		if !path.IsAbs(name) || path.Clean(name) != name || name == "/" || strings.ContainsRune(name, 0) {
			return sdk.Invalid("files", "%q is not a clean absolute path", clip(name))
		}
		if _, err := fileMode(file); err != nil {
			return sdk.Invalid("files", "%s: mode %q is not octal", clip(name), clip(file.Mode))
		}
		size += len(file.Content)
	}
	if size > maxFiles {
		return sdk.Invalid("files", "%d bytes, and %d is the most", size, maxFiles)
	}
	return nil
}

func fileMode(f sdk.File) (uint32, error) {
	if f.Mode == "" {
		return 0o644, nil
	}
	mode, err := strconv.ParseUint(f.Mode, 8, 32)
	if err != nil || mode > 0o777 {
		return 0, fmt.Errorf("mode %q", f.Mode)
	}
	return uint32(mode), nil
}

// plan does what can be done before the sandbox exists.
func (e *Extension) plan(ctx context.Context, opts sdk.CreateOptions, from *origin) (p *plan, err error) {
	p = &plan{gvisor: runsc.Version()}
	defer func() {
		if err != nil {
			p.close()
			p = nil
		}
	}()
	if problem, advice := e.store.checkProgram(); problem != "" {
		return p, &sdk.Error{Kind: sdk.ErrUnreachable, Message: problem, Advice: advice}
	}
	p.config.ID = opts.ID
	program, err := e.store.program()
	if err == nil {
		p.held = append(p.held, program)
		p.config.Program, p.digest = program.dir, program.digest
	}
	if err != nil {
		return p, err
	}
	source, err := e.source(ctx, opts, from)
	if err != nil {
		return p, err
	}
	p.held = append(p.held, source.image)
	p.config.Image, p.image, p.imageEnv = source.path(), source.meta.Key, source.env()
	if err := p.limits(opts); err != nil {
		return p, err
	}
	if err := p.network(opts.Profile); err != nil {
		return p, err
	}
	if err := p.process(opts, source); err != nil {
		return p, err
	}
	if err := p.files(opts); err != nil {
		return p, err
	}
	if from != nil {
		if err := from.apply(p); err != nil {
			return p, err
		}
	}
	p.resolver(opts.Profile)
	return p, nil
}

// resolverPath says which name server programs ask.
const resolverPath = "/etc/resolv.conf"

// resolver names the name server that the network has, if there is one, in a
// new sandbox as in one from a filesystem snapshot, which may come from
// another network. A profile's own file wins.
func (p *plan) resolver(profile sdk.Profile) {
	var content string
	_, own := profile.Files[resolverPath]
	switch {
	case own || p.config.Start.Memory:
		return
	case p.config.Network == "host":
		content = readSmall(resolverPath)
	case p.config.Egress != nil:
		content = egress.ResolvConf
	default:
		return
	}
	p.config.Files = append(p.config.Files, guest.File{Path: resolverPath, Content: []byte(content), Mode: 0o644})
}

func (p *plan) network(profile sdk.Profile) (err error) {
	p.portNames = slices.Sorted(maps.Keys(profile.Ports))
	for _, name := range p.portNames {
		p.config.Ports = append(p.config.Ports, profile.Ports[name])
	}
	switch egressOf(profile) {
	case sdk.EgressOpen:
		p.config.Network = "host"
	case sdk.EgressDeny:
		p.config.Network = "sandbox"
		if len(profile.Network.Allow) > 0 {
			p.config.Egress = &egress.Config{Allow: profile.Network.Allow}
			break
		}
		// A network stack whose only interface is loopback: no packet has
		// anywhere to go, and published ports still reach in.
		p.config.OwnNet = true
	default:
		p.config.Network = "none"
		if len(profile.Ports) > 0 {
			p.config.Network, p.config.OwnNet = "sandbox", true
		}
	}
	host := "127.0.0.1"
	if profile.Publish == "host" {
		host = "0.0.0.0"
	}
	p.listeners, p.hostPorts, err = publish(host, len(p.config.Ports))
	if err != nil {
		return fmt.Errorf("publish ports: %w", err)
	}
	return nil
}

// process fills in the main process and its environment.
func (p *plan) process(opts sdk.CreateOptions, source source) error {
	profile := opts.Profile
	name := profile.User
	if name == "" {
		name = source.meta.Config.User
	}
	user, err := source.user(name)
	if err != nil {
		return sdk.Invalid("user", "%v", err)
	}
	p.home = user.Home
	workdir := profile.Workdir
	if workdir == "" {
		workdir = source.meta.Config.Workdir
	}
	if !path.IsAbs(workdir) {
		workdir = "/"
	}
	secrets := slices.Collect(maps.Keys(opts.Secrets))
	env := baseEnv(record.Record{Profile: profile, Env: opts.Env, ImageEnv: p.imageEnv, Home: p.home, Secrets: secrets})
	p.config.Process = supervisor.Process{
		Env: envList(env), Workdir: workdir, UID: user.UID, GID: user.GID, Groups: user.Groups,
		Command: profile.Command, Group: p.config.Process.Group,
	}
	return nil
}

// baseEnv is the environment that every process of a sandbox begins with:
// defaults, the image's, the profile's, the caller's, and where secrets lie.
func baseEnv(r record.Record) map[string]string {
	home := r.Home
	if home == "" {
		home = "/root"
	}
	env := map[string]string{"PATH": defaultPath, "HOME": home, "TERM": "xterm", "LANG": "C.UTF-8", "SANDBOXER_ID": r.ID}
	if r.ID == "" {
		delete(env, "SANDBOXER_ID")
	}
	maps.Copy(env, r.ImageEnv)
	maps.Copy(env, r.Profile.Env)
	maps.Copy(env, r.Env)
	for _, name := range r.Secrets {
		env[name+"_FILE"] = path.Join(secretsDir, name)
	}
	return env
}

// files collects what is placed before the command starts. Secrets lie on a
// tmpfs and belong to the main process's user alone.
func (p *plan) files(opts sdk.CreateOptions) error {
	uid, gid := int(p.config.Process.UID), int(p.config.Process.GID)
	for _, name := range slices.Sorted(maps.Keys(opts.Profile.Files)) {
		file := opts.Profile.Files[name]
		mode, err := fileMode(file)
		if err != nil {
			return err
		}
		p.config.Files = append(p.config.Files, guest.File{Path: name, Content: []byte(file.Content), Mode: mode, UID: uid, GID: gid})
	}
	for _, name := range slices.Sorted(maps.Keys(opts.Secrets)) {
		p.config.Files = append(p.config.Files, guest.File{
			Path: path.Join(secretsDir, name), Content: []byte(string(opts.Secrets[name])), Mode: 0o400, UID: uid, GID: gid,
		})
	}
	return nil
}

// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package docker

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/backend/docker/guestwire"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// capabilitiesKept is what a sandbox's root keeps of an engine's default set:
// enough to install packages and to give up rights, nothing that reaches the
// network's raw packets, devices or other namespaces.
var capabilitiesKept = []string{"CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "NET_BIND_SERVICE", "SETGID", "SETUID"}

// secretsSize is the size of the tmpfs for secrets: all of them, and the
// blocks that small files take.
const secretsSize = "size=16m,mode=1777,noexec,nosuid,nodev"

// creation is a sandbox that is about to be made.
type creation struct {
	opts     sdk.CreateOptions
	identity sdk.Identity
	lease    sdk.Lease
	limits   limits
	image    image
	guest    program
	runtime  string
	from     *sdk.Snapshot // what it is restored from; nil without
}

// Create implements [sdk.Extension].
func (e *Extension) Create(ctx context.Context, opts sdk.CreateOptions) (sdk.CreateResult, error) {
	return e.make(ctx, opts, nil)
}

// make makes a sandbox, from a profile alone or from a snapshot.
func (e *Extension) make(ctx context.Context, opts sdk.CreateOptions, from *sdk.Snapshot) (sdk.CreateResult, error) {
	eng, f, err := e.ask(ctx)
	if err != nil {
		return sdk.CreateResult{}, err
	}
	c, err := e.plan(ctx, eng, f, opts, from)
	if err != nil {
		return sdk.CreateResult{}, err
	}
	if err := e.take(ctx, eng, c); err != nil {
		return sdk.CreateResult{}, err
	}
	err = e.build(ctx, eng, c)
	if err == nil {
		var made sdk.Sandbox
		if made, err = e.made(ctx, sdk.Target{ID: opts.ID, Fleet: opts.Identity.Fleet}); err == nil {
			return sdk.CreateResult{Sandbox: made}, nil
		}
	}
	return sdk.CreateResult{}, errors.Join(err, e.abandon(ctx, opts, err))
}

// made is the sandbox that was just made. The reaper is not looked for once
// more: it was there a moment ago, or somebody else sees to the deadline.
func (e *Extension) made(ctx context.Context, target sdk.Target) (sdk.Sandbox, error) {
	_, f, o, _, err := e.find(ctx, target)
	if err != nil {
		return sdk.Sandbox{}, err
	}
	return e.sandbox(o, f, e.settings.Reaper != reaperExternal)
}

// abandonDeadline bounds the removal of what a failed creation has made.
const abandonDeadline = 30 * time.Second

// abandon removes what was made, also when the caller's context has ended.
// When the engine can't be asked, the lease sees to it.
func (e *Extension) abandon(ctx context.Context, opts sdk.CreateOptions, cause error) error {
	if errors.Is(cause, sdk.ErrUnreachable) {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abandonDeadline)
	defer cancel()
	if _, err := e.Destroy(ctx, sdk.DestroyOptions{Target: sdk.Target{ID: opts.ID, Fleet: opts.Identity.Fleet}}); err != nil {
		return fmt.Errorf("and what was made of it could not be removed: %w", err)
	}
	return nil
}

// plan does what can be done before anything of the sandbox exists.
func (e *Extension) plan(ctx context.Context, eng engine, f facts, opts sdk.CreateOptions, from *sdk.Snapshot) (c creation, err error) {
	c = creation{opts: opts, runtime: opts.Profile.Runtime, from: from}
	now := e.now(f)
	if err := validate(opts, now, from != nil); err != nil {
		return c, err
	}
	if c.limits, err = limitsOf(opts.Profile, capabilities(f)); err != nil {
		return c, err
	}
	if c.runtime != "" && !f.runtimes[c.runtime] {
		return c, sdk.Unsupported("runtime", "the engine has no runtime %q; it has %s", clip(c.runtime), strings.Join(slices.Sorted(maps.Keys(f.runtimes)), ", "))
	}
	c.identity = opts.Identity.Clone()
	c.identity.ID, c.identity.Incarnation = opts.ID, max(opts.Identity.Incarnation, 1)
	c.lease = sdk.Lease{ExpiresAt: opts.ExpiresAt.UTC().Round(0), MaxExpiresAt: opts.MaxExpiresAt.UTC().Round(0), Generation: 1, Event: opts.Event}
	if opts.MaxExpiresAt.IsZero() {
		c.lease.MaxExpiresAt = c.lease.ExpiresAt
	}
	if end := now.Add(c.limits.wall).Round(0); c.limits.wall > 0 && end.Before(c.lease.MaxExpiresAt) {
		c.lease.MaxExpiresAt = end
	}
	if c.lease.ExpiresAt.After(c.lease.MaxExpiresAt) {
		c.lease.ExpiresAt = c.lease.MaxExpiresAt
	}
	if c.image, err = e.root(ctx, eng, opts, from); err != nil {
		return c, err
	}
	arch := c.image.arch
	if arch == "" {
		arch = f.arch
	}
	c.guest, err = e.guest(arch)
	return c, err
}

// root is the image that a sandbox is made from.
func (e *Extension) root(ctx context.Context, eng engine, opts sdk.CreateOptions, from *sdk.Snapshot) (img image, err error) {
	if from == nil {
		return e.source(ctx, eng, opts.Profile, opts.Progress)
	}
	if img, err = e.inspectImage(ctx, eng, snapshotTag(from.ID)); err != nil {
		return img, e.translate(err, "look for snapshot "+clip(from.ID))
	}
	img.kept, err = keptVolumes(img.labels)
	return img, err
}

// take makes the first generation of the lease: who makes it makes the
// sandbox. It is there before the container, so that there is never a
// container without a deadline.
func (e *Extension) take(ctx context.Context, eng engine, c creation) error {
	// An older container of this name has a lease of a later generation.
	objects, _, err := e.lookup(ctx, eng, c.identity.Fleet, c.identity.ID, false)
	if err != nil {
		return err
	}
	if o := objects[c.identity.ID]; o != nil {
		present, _, _ := o.lease(c.identity.CreatedAt)
		return sdk.Conflict(present, "sandbox %s exists already", c.identity.ID)
	}
	_, nonce, labels, err := e.createRecord(ctx, eng, c.identity, c.lease, roleLease)
	if err != nil {
		return e.translate(err, "take the lease of "+c.identity.ID)
	}
	if labels[labelNonce] != nonce {
		return sdk.Errorf(sdk.ErrConflict, "sandbox %s exists already, or is being made", c.identity.ID)
	}
	return nil
}

// build makes the container and what it needs, and starts it.
func (e *Extension) build(ctx context.Context, eng engine, c creation) error {
	guarding := make(chan error, 1)
	go func() { guarding <- e.guard(ctx, eng, c.identity.Fleet) }()
	id, err := e.makeContainer(ctx, eng, c)
	if guardErr := <-guarding; err == nil {
		err = guardErr
	}
	if err != nil {
		return err
	}
	noting := make(chan error, 1)
	go func() { noting <- e.note(ctx, eng, c) }()
	err = e.place(ctx, eng, id, c)
	if noteErr := <-noting; err == nil {
		err = noteErr
	}
	if err == nil {
		err = e.fillVolumes(ctx, eng, id, c)
	}
	if err != nil {
		return err
	}
	if err := e.start(ctx, eng, id, c); err != nil {
		return err
	}
	if c.isolatedPorts() {
		return e.carryPorts(ctx, eng, id, c)
	}
	return nil
}

// note writes down that the container was there: from then on its absence is
// no creation that is under way. What it is says the lease.
func (e *Extension) note(ctx context.Context, eng engine, c creation) error {
	labels := map[string]string{sdk.LabelID: c.identity.ID, sdk.LabelFleet: c.identity.Fleet, labelRole: roleMade}
	_, err := eng.VolumeCreate(ctx, client.VolumeCreateOptions{Name: madeName(c.identity.ID), Driver: "local", Labels: labels})
	return e.translate(err, "note that "+c.identity.ID+" was made")
}

// isolatedPorts reports whether connections have to be carried to a sandbox
// that has no way out.
func (c creation) isolatedPorts() bool {
	return len(c.opts.Profile.Ports) > 0 && egress(c.opts.Profile) != sdk.EgressOpen
}

func (e *Extension) makeContainer(ctx context.Context, eng engine, c creation) (string, error) {
	host := &container.HostConfig{
		CapDrop: []string{"ALL"}, CapAdd: capabilitiesKept, SecurityOpt: []string{"no-new-privileges"},
		Runtime: c.runtime, NetworkMode: "none", IpcMode: "private",
		RestartPolicy: container.RestartPolicy{Name: container.RestartPolicyDisabled},
		Resources:     container.Resources{NanoCPUs: c.limits.nanoCPUs, Memory: c.limits.memory, MemorySwap: c.limits.memory},
	}
	if c.limits.pids > 0 {
		host.PidsLimit = &c.limits.pids
	}
	if c.limits.disk != "" {
		host.StorageOpt = map[string]string{"size": c.limits.disk}
	}
	if len(c.opts.Secrets) > 0 {
		host.Tmpfs = map[string]string{guestwire.Secrets: secretsSize}
	}
	for _, target := range slices.Compact(slices.Sorted(slices.Values(slices.Concat(c.image.volumes, c.image.kept)))) {
		options := &mount.VolumeOptions{Labels: c.labels(roleData), NoCopy: slices.Contains(c.image.kept, target)}
		host.Mounts = append(host.Mounts, mount.Mount{Type: mount.TypeVolume, Target: target, VolumeOptions: options})
	}
	config := c.config()
	switch {
	case c.isolatedPorts():
		if err := e.makeNetwork(ctx, eng, c); err != nil {
			return "", err
		}
		host.NetworkMode = container.NetworkMode(networkName(c.identity.ID))
	case egress(c.opts.Profile) == sdk.EgressOpen:
		host.NetworkMode = "bridge"
		config.ExposedPorts, host.PortBindings = published(c.opts.Profile)
	}
	made, err := eng.ContainerCreate(ctx, client.ContainerCreateOptions{Name: c.identity.ID, Config: config, HostConfig: host})
	if err != nil {
		return "", e.createError(err, c)
	}
	for _, warning := range made.Warnings {
		// An engine that can't hold a limit says so and goes on without it.
		if strings.Contains(warning, "discarded") || strings.Contains(warning, "not support") {
			if c.limits != (limits{}) && !strings.Contains(warning, "swap") {
				return "", sdk.Unsupported("limits", "the engine says: %s", clip(warning))
			}
		}
	}
	return made.ID, nil
}

// createError finds the attribute that the engine complains about.
func (e *Extension) createError(err error, c creation) error {
	translated := e.translate(err, "create "+c.identity.ID)
	var said *sdk.Error
	if !errors.As(translated, &said) || errors.Is(said.Kind, sdk.ErrUnreachable) || errors.Is(said.Kind, sdk.ErrConflict) {
		if text := err.Error(); strings.Contains(text, "storage-opt") {
			return sdk.Unsupported("limits.disk", "the engine's storage driver has no quotas: %s", clip(text))
		}
		return translated
	}
	if errors.Is(said.Kind, sdk.ErrNotFound) {
		// The image went between the look and the create.
		said.Kind, said.Path = sdk.ErrInvalid, "image"
	}
	return said
}

func (c creation) labels(role string) map[string]string {
	labels := c.identity.ToLabels()
	labels[labelRole] = role
	return labels
}

// config is the container's own part of a creation. Everything that an image
// sets by default and a profile says too is set here, so that an image never
// decides what runs.
func (c creation) config() *container.Config {
	p := c.opts.Profile
	labels := map[string]string{}
	for _, key := range ownLabels {
		labels[key] = ""
	}
	maps.Copy(labels, c.labels(roleSandbox))
	if c.from != nil {
		labels[labelSnapshot] = c.from.ID
	}
	labels[labelLease], labels[labelOnExpiry] = encode(c.lease), string(sdk.OnExpiryDestroy)
	labels[labelSecrets] = strconv.FormatBool(len(c.opts.Secrets) > 0)
	if document := encodeDocument(p); document != "" {
		labels[labelDocument] = document
	}
	if len(p.Ports) > 0 {
		labels[labelPorts] = encode(p.Ports)
	}
	gate := guestwire.GateOpen
	if len(c.opts.Secrets) > 0 {
		gate = guestwire.GateSecrets
	}
	return &container.Config{
		Image: c.image.ref, Labels: labels, Env: c.env(), User: p.User, WorkingDir: p.Workdir,
		Entrypoint: []string{guestwire.Program, guestwire.VerbInit, gate}, Cmd: p.Command,
		Healthcheck: &container.HealthConfig{Test: []string{"NONE"}}, StopSignal: "SIGTERM",
		OpenStdin: gate == guestwire.GateSecrets, StdinOnce: gate == guestwire.GateSecrets,
	}
}

// env is the environment that every process of the sandbox begins with,
// beyond the image's: the profile's, the caller's, and where secrets lie.
func (c creation) env() []string {
	env := map[string]string{"SANDBOXER_ID": c.identity.ID}
	maps.Copy(env, c.opts.Profile.Env)
	maps.Copy(env, c.opts.Env)
	for name := range c.opts.Secrets {
		env[name+"_FILE"] = path.Join(guestwire.Secrets, name)
	}
	return envList(env)
}

func envList(env map[string]string) []string {
	list := make([]string, 0, len(env))
	for _, name := range slices.Sorted(maps.Keys(env)) {
		list = append(list, name+"="+env[name])
	}
	return list
}

// published returns the ports of a profile as the engine publishes them: at
// one that it chooses.
func published(p sdk.Profile) (network.PortSet, network.PortMap) {
	address := netip.MustParseAddr("127.0.0.1")
	if p.Publish == "host" {
		address = netip.IPv4Unspecified()
	}
	set, bindings := network.PortSet{}, network.PortMap{}
	for _, number := range p.Ports {
		port, _ := network.PortFrom(uint16(number), network.TCP)
		set[port], bindings[port] = struct{}{}, []network.PortBinding{{HostIP: address}}
	}
	return set, bindings
}

// place puts our program and the profile's files into the container.
func (e *Extension) place(ctx context.Context, eng engine, id string, c creation) error {
	uid, gid, err := e.owner(ctx, eng, id, c)
	if err != nil {
		return err
	}
	var packed bytes.Buffer
	w := tar.NewWriter(&packed)
	add := func(name string, mode int64, uid, gid int, content []byte) {
		// To memory, from names that were checked.
		_ = w.WriteHeader(&tar.Header{Name: strings.TrimPrefix(name, "/"), Mode: mode, Uid: uid, Gid: gid, Size: int64(len(content)), Typeflag: tar.TypeReg, Format: tar.FormatPAX})
		_, _ = w.Write(content)
	}
	_ = w.WriteHeader(&tar.Header{Name: strings.TrimPrefix(guestwire.Dir, "/") + "/", Mode: 0o755, Typeflag: tar.TypeDir})
	add(guestwire.Program, 0o755, 0, 0, c.guest.content)
	for _, name := range c.files() {
		file := c.opts.Profile.Files[name]
		mode, err := fileMode(file)
		if err != nil {
			return err
		}
		add(name, mode, uid, gid, []byte(file.Content))
	}
	_ = w.Close()
	_, err = eng.CopyToContainer(ctx, id, client.CopyToContainerOptions{DestinationPath: "/", Content: &packed})
	return e.translate(err, "place files in "+c.identity.ID)
}

// files are the profile's files to place. A snapshot holds them, as the
// sandbox left them.
func (c creation) files() []string {
	if c.from != nil {
		return nil
	}
	return slices.Sorted(maps.Keys(c.opts.Profile.Files))
}

// owner is who the profile's files belong to: the main process's user. Only
// a name needs a look into the image's own database.
func (e *Extension) owner(ctx context.Context, eng engine, id string, c creation) (uid, gid int, err error) {
	user := c.opts.Profile.User
	if user == "" {
		user = c.image.user
	}
	if user == "" || user == "root" || len(c.files()) == 0 {
		return 0, 0, nil
	}
	name, group, hasGroup := strings.Cut(user, ":")
	uid, uidErr := strconv.Atoi(name)
	gid, gidErr := strconv.Atoi(group)
	if uidErr == nil && (!hasGroup || gidErr == nil) {
		return uid, gid, nil
	}
	answer, err := eng.CopyFromContainer(ctx, id, client.CopyFromContainerOptions{SourcePath: "/etc/passwd"})
	if err != nil {
		if errdefs.IsNotFound(err) {
			return 0, 0, nil // the engine itself refuses a name that it can't find
		}
		return 0, 0, e.translate(err, "read the users of "+c.identity.ID)
	}
	defer answer.Content.Close()
	tree := tar.NewReader(answer.Content)
	if _, err := tree.Next(); err != nil {
		return 0, 0, nil
	}
	passwd, err := io.ReadAll(io.LimitReader(tree, maxFile))
	if err != nil {
		return 0, 0, e.translate(err, "read the users of "+c.identity.ID)
	}
	for line := range strings.Lines(string(passwd)) {
		fields := strings.Split(strings.TrimSpace(line), ":")
		if len(fields) >= 4 && fields[0] == name {
			uid, uidErr = strconv.Atoi(fields[2])
			primary, groupErr := strconv.Atoi(fields[3])
			if uidErr == nil && groupErr == nil && !hasGroup {
				gid = primary
			}
			break
		}
	}
	return uid, gid, nil
}

// start starts the container, and sends it its secrets over the first
// process's input: so they are in no label, variable or file of the engine.
func (e *Extension) start(ctx context.Context, eng engine, id string, c creation) error {
	if len(c.opts.Secrets) == 0 {
		_, err := eng.ContainerStart(ctx, id, client.ContainerStartOptions{})
		return e.startError(err, c)
	}
	attached, err := eng.ContainerAttach(ctx, id, client.ContainerAttachOptions{Stream: true, Stdin: true})
	if err != nil {
		return e.translate(err, "attach to "+c.identity.ID)
	}
	defer attached.Close()
	defer context.AfterFunc(ctx, attached.Close)()
	if _, err := eng.ContainerStart(ctx, id, client.ContainerStartOptions{}); err != nil {
		return e.startError(err, c)
	}
	for _, name := range slices.Sorted(maps.Keys(c.opts.Secrets)) {
		if err := guestwire.WriteSecret(attached.Conn, name, string(c.opts.Secrets[name])); err != nil {
			return e.translate(err, "send its secrets to "+c.identity.ID)
		}
	}
	err = guestwire.WriteFrame(attached.Conn, guestwire.FrameEnd, nil)
	return e.translate(errors.Join(err, attached.CloseWrite()), "send its secrets to "+c.identity.ID)
}

// startError finds the attribute that a start failed for.
func (e *Extension) startError(err error, c creation) error {
	if err == nil {
		return nil
	}
	switch text := err.Error(); {
	case strings.Contains(text, "unable to find user"), strings.Contains(text, "no matching entries in passwd"), strings.Contains(text, "unable to find group"):
		return &sdk.Error{Kind: sdk.ErrInvalid, Path: "user", Message: fmt.Sprintf("the image has no user %q", clip(c.opts.Profile.User)), Err: err}
	case strings.Contains(text, "exec format error"):
		return &sdk.Error{Kind: sdk.ErrInvalid, Path: "image", Message: "the image is for another processor than the engine's", Err: err}
	}
	return e.translate(err, "start "+c.identity.ID)
}

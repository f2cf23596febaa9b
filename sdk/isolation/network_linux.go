// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package isolation

import (
	"context"
	"encoding/binary"
	"errors"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

const (
	// dialTime bounds one attempt to connect. What is looked for is on this
	// machine or one hop away and answers within milliseconds.
	dialTime = time.Second
	// dialTries is how often silence is tried again before it counts.
	dialTries = 2
	maxDials  = 256
)

// metadataAddresses are where clouds hand out credentials to whoever asks
// from the right machine.
var metadataAddresses = []string{
	"169.254.169.254:80",      // AWS, Google, Azure, Oracle, OpenStack, DigitalOcean, Hetzner
	"[fd00:ec2::254]:80",      // AWS
	"169.254.170.2:80",        // AWS, for containers
	"169.254.170.23:80",       // AWS, for pods
	"[fd00:ec2::23]:80",       // AWS, for pods
	"[fd20:ce::254]:80",       // Google
	"168.63.129.16:80",        // Azure's wire server
	"168.63.129.16:32526",     // likewise
	"100.100.100.200:80",      // Alibaba
	"169.254.0.23:80",         // Tencent
	"[fd00:c1::a9fe:a9fe]:80", // Oracle
}

// enginePorts are where container engines and the agents of orchestrators
// listen.
var enginePorts = []string{"2375", "2376", "4243", "10250", "10255"}

// engineSocketFiles are where engines listen, as patterns.
var engineSocketFiles = []string{
	"/run/docker.sock", "/var/run/docker.sock", "/run/user/*/docker.sock", "/run/containerd/containerd.sock", "/run/k3s/containerd/containerd.sock",
	"/run/podman/podman.sock", "/run/user/*/podman/podman.sock", "/run/crio/crio.sock", "/var/run/crio/crio.sock", "/run/cri-dockerd.sock", "/run/buildkit/buildkitd.sock",
	"/var/lib/lxd/unix.socket", "/var/lib/incus/unix.socket", "/run/libvirt/libvirt-sock", "/docker.sock", "/host/run/docker.sock", "/host/var/run/docker.sock",
}

// agentSocketFiles are where agents listen, as patterns.
var agentSocketFiles = []string{
	"/tmp/ssh-*/agent.*", "/run/user/*/keyring/ssh", "/run/user/*/keyring/.ssh", "/run/user/*/ssh-agent*", "/run/user/*/openssh_agent", "/run/user/*/gnupg/S.gpg-agent*",
	"/run/host-services/ssh-auth.sock", "/run/ssh-agent*", "/ssh-agent*", "/ssh-auth.sock", "/tmp/ssh-agent*", "/run/buildkit/ssh_agent.*",
}

// reach is one attempt to connect.
type reach struct {
	check   sdk.IsolationCheck
	network string
	address string
	name    string // how the evidence calls it
}

// outcome is what came of it.
type outcome struct {
	connected bool
	silent    bool // no answer, neither yes nor no
	err       error
}

// network tries to reach what a sandbox must not reach. Nothing is sent over
// a connection that comes about.
func (l *look) network(ctx context.Context) {
	var reaches []reach
	for _, address := range metadataAddresses {
		reaches = append(reaches, reach{sdk.CheckMetadata, "tcp", address, address})
	}
	reaches = append(reaches, l.sockets()...)
	gateways, err := l.gateways()
	if err != nil {
		l.Unknown(sdk.CheckEngine, "the gateways can't be told: "+why(err))
	}
	for _, gateway := range gateways {
		for _, port := range enginePorts {
			reaches = append(reaches, reach{sdk.CheckEngine, "tcp", net.JoinHostPort(gateway, port), "port " + port + " of " + gateway})
		}
	}
	if address := strings.TrimPrefix(l.env["DOCKER_HOST"], "tcp://"); address != l.env["DOCKER_HOST"] {
		reaches = append(reaches, reach{sdk.CheckEngine, "tcp", address, "the engine that DOCKER_HOST names"})
	}
	if len(reaches) > maxDials {
		l.Unknown(sdk.CheckAgents, "there are more than "+strconv.Itoa(maxDials)+" sockets to try")
		l.Unknown(sdk.CheckEngine, "there are more than "+strconv.Itoa(maxDials)+" sockets to try")
		reaches = reaches[:maxDials]
	}
	outcomes := make([]outcome, len(reaches))
	var trying sync.WaitGroup
	for i, r := range reaches {
		trying.Go(func() { outcomes[i] = try(ctx, r) })
	}
	trying.Wait()
	tried, silent := map[sdk.IsolationCheck]int{}, 0
	for i, r := range reaches {
		tried[r.check]++
		switch o := outcomes[i]; {
		case o.connected:
			l.Failed(r.check, r.name+" accepts connections")
		case o.silent && r.network == "unix":
			l.Unknown(r.check, r.name+" is there and does not say yes or no")
		case o.silent:
			silent++
		case o.err != nil:
			l.Unknown(r.check, r.name+" could not be tried: "+why(o.err))
		}
	}
	said := ""
	if silent > 0 {
		said = "; " + strconv.Itoa(silent) + " of all addresses gave no answer within " + (dialTries * dialTime).String()
	}
	l.Passed(sdk.CheckMetadata, "none of "+strconv.Itoa(tried[sdk.CheckMetadata])+" addresses at which clouds hand out credentials can be reached"+said)
	l.Passed(sdk.CheckEngine, "no socket or port of a container engine can be reached ("+strconv.Itoa(tried[sdk.CheckEngine])+" were tried)")
	l.Passed(sdk.CheckAgents, "no socket of an SSH or GPG agent can be reached ("+strconv.Itoa(tried[sdk.CheckAgents])+" were there to try)")
}

// try connects, and closes at once.
func try(ctx context.Context, r reach) (o outcome) {
	for range dialTries {
		dialer := net.Dialer{Timeout: dialTime}
		conn, err := dialer.DialContext(ctx, r.network, r.address)
		if err == nil {
			_ = conn.Close()
			return outcome{connected: true}
		}
		var timeout net.Error
		switch {
		case ctx.Err() != nil:
			return outcome{err: ctx.Err()}
		case errors.As(err, &timeout) && timeout.Timeout(), errors.Is(err, unix.EAGAIN):
			o.silent = true
		case refusedOrClosed(err):
			return outcome{}
		default:
			return outcome{err: errors.New(lastOf(err))}
		}
	}
	return o
}

// refusedOrClosed tells a clear no: nobody listens, or there is no way there.
func refusedOrClosed(err error) bool {
	for _, no := range []error{
		unix.ECONNREFUSED, unix.ECONNRESET, unix.ENETUNREACH, unix.EHOSTUNREACH, unix.ENETDOWN, unix.EHOSTDOWN, unix.EACCES, unix.EPERM,
		unix.ENOENT, unix.ENOTSOCK, unix.EPROTOTYPE, unix.EADDRNOTAVAIL, unix.EAFNOSUPPORT,
	} {
		if errors.Is(err, no) {
			return true
		}
	}
	return false
}

func lastOf(err error) string {
	for {
		next := errors.Unwrap(err)
		if next == nil {
			return err.Error()
		}
		err = next
	}
}

// sockets are the unix sockets to try: those in the places that are known,
// those that variables name, and those of the kernel's own list whose path is
// one of an engine or an agent.
func (l *look) sockets() []reach {
	found := map[string]sdk.IsolationCheck{}
	add := func(check sdk.IsolationCheck, name string) {
		if info, err := os.Stat(name); err == nil && info.Mode()&fs.ModeSocket != 0 {
			found[name] = check
		}
	}
	globs := func(check sdk.IsolationCheck, patterns []string) {
		for _, pattern := range patterns {
			names, _ := filepath.Glob(pattern) // the patterns are ours
			for _, name := range names {
				add(check, name)
			}
		}
	}
	globs(sdk.CheckEngine, engineSocketFiles)
	globs(sdk.CheckAgents, agentSocketFiles)
	for _, home := range l.homeDirs() {
		home = quoteMeta(home)
		globs(sdk.CheckAgents, []string{home + "/.gnupg/S.gpg-agent*", home + "/.ssh/agent/*", home + "/.ssh/*.sock", home + "/.1password/agent.sock"})
		globs(sdk.CheckEngine, []string{home + "/.docker/run/docker.sock", home + "/.colima/*/docker.sock"})
	}
	for _, variable := range []string{"SSH_AUTH_SOCK", "GPG_AGENT_INFO"} {
		name, _, _ := strings.Cut(l.env[variable], ":")
		add(sdk.CheckAgents, name)
	}
	for _, variable := range []string{"DOCKER_HOST", "CONTAINER_HOST", "CONTAINERD_ADDRESS"} {
		add(sdk.CheckEngine, strings.TrimPrefix(l.env[variable], "unix://"))
	}
	if table, err := read("/proc/net/unix"); err == nil {
		for line := range strings.Lines(string(table)) {
			fields := strings.Fields(line)
			if len(fields) < 8 {
				continue
			}
			name := fields[7]
			if check := Place(strings.TrimPrefix(name, "@")); check == sdk.CheckEngine || check == sdk.CheckAgents {
				if strings.HasPrefix(name, "@") {
					found[name] = check // an abstract one is in no directory
				} else {
					add(check, name)
				}
			}
		}
	}
	var reaches []reach
	for name, check := range found {
		reaches = append(reaches, reach{check, "unix", name, "the socket " + Quote(name)})
	}
	slices.SortFunc(reaches, func(a, b reach) int { return strings.Compare(a.address, b.address) })
	return reaches
}

// gateways are the machines next to this one that an engine may run on, and
// this one itself.
func (l *look) gateways() ([]string, error) {
	found := []string{"127.0.0.1"}
	table, err := read("/proc/net/route")
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // a kernel without a network has no such file
		return found, err
	}
	for line := range strings.Lines(string(table)) {
		fields := strings.Fields(line)
		if len(fields) < 8 || len(fields[2]) != 8 {
			continue
		}
		value, err := strconv.ParseUint(fields[2], 16, 32)
		if err != nil {
			continue // the heading
		}
		// The kernel writes the address as a number of this machine's.
		var address [4]byte
		binary.NativeEndian.PutUint32(address[:], uint32(value))
		if gateway := netip.AddrFrom4(address); !gateway.IsUnspecified() {
			found = append(found, gateway.String())
		}
	}
	if hosts, err := read("/etc/hosts"); err == nil {
		for line := range strings.Lines(string(hosts)) {
			fields := strings.Fields(line)
			if len(fields) < 2 || !slices.ContainsFunc(fields[1:], func(name string) bool { return strings.HasSuffix(name, ".internal") }) {
				continue
			}
			if address, err := netip.ParseAddr(fields[0]); err == nil {
				found = append(found, address.String())
			}
		}
	}
	slices.Sort(found)
	return slices.Compact(found), nil
}

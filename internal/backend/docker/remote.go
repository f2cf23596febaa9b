// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package docker

// An engine behind ssh://. Every connection to it is a stream of one SSH
// connection: straight to its socket, which costs half a millisecond and no
// session, or through the host's docker command where the SSH server forwards
// to no sockets.

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/sshtransport"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// systemSocket is the socket of a machine's own engine.
const systemSocket = "/var/run/docker.sock"

// remote is how an engine behind ssh:// is reached.
type remote struct {
	host   *sshtransport.Host
	socket string // of the address; empty when it is to be found

	searching chan struct{} // holds one token while somebody searches

	mu    sync.Mutex
	found *way // nil before the first connection
}

// way is one way to an engine, which every connection takes once it worked:
// another one might lead to another engine.
type way struct {
	socket  string
	command bool // through the docker command instead of straight to the socket
}

func (e *Extension) newRemote(address string) (*remote, error) {
	a, err := sshtransport.ParseAddress(address)
	if err != nil {
		return nil, sdk.Invalid("host", "%s", err)
	}
	var config sshtransport.Config
	if e.settings.SSH != nil {
		config = *e.settings.SSH
	}
	host, err := e.opts.SSH.Host(a, config, "ssh")
	if err != nil {
		return nil, err
	}
	return &remote{host: host, socket: a.Path, searching: make(chan struct{}, 1)}, nil
}

// dial opens a connection to the engine.
func (r *remote) dial(ctx context.Context) (net.Conn, error) {
	if w := r.known(); w != nil {
		return r.through(ctx, *w)
	}
	select {
	case r.searching <- struct{}{}:
		defer func() { <-r.searching }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if w := r.known(); w != nil {
		return r.through(ctx, *w)
	}
	conn, w, err := r.search(ctx)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.found = &w
	return conn, nil
}

// known returns the way that is known.
func (r *remote) known() *way {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.found
}

// String tells the way, for people.
func (r *remote) String() string {
	w := r.known()
	switch {
	case w == nil:
		return "not known"
	case w.command:
		return "docker system dial-stdio to " + w.socket + " as " + r.host.Name()
	}
	return "stream to " + w.socket + " as " + r.host.Name()
}

func (r *remote) through(ctx context.Context, w way) (net.Conn, error) {
	if w.command {
		return r.host.DialCommand(ctx, "docker", "--host", "unix://"+w.socket, "system", "dial-stdio")
	}
	return r.host.DialUnix(ctx, w.socket)
}

// search finds a way and opens the first connection by it. The usual socket
// is tried before anything is looked at: that is all that most hosts need.
func (r *remote) search(ctx context.Context) (net.Conn, way, error) {
	w := way{socket: r.socket}
	if w.socket == "" {
		w.socket = systemSocket
	}
	conn, err := r.through(ctx, w)
	if err == nil || !errors.As(err, new(*sshtransport.RefusedError)) {
		return conn, w, err
	}
	refusal := err
	view, err := r.look(ctx)
	if err != nil {
		// The refusal names every reason that there can be.
		return nil, way{}, &sdk.Error{Kind: sdk.ErrUnreachable, Message: "no way to the engine, and the host can't be looked at", Err: errors.Join(refusal, err)}
	}
	seen, err := view.choose()
	if err != nil {
		return nil, way{}, r.fault(err)
	}
	if seen != w.socket {
		w.socket = seen
		conn, err = r.through(ctx, w)
		if err == nil || !errors.As(err, new(*sshtransport.RefusedError)) {
			return conn, w, err
		}
		refusal = err
	}
	// The socket is there for this user: it is the SSH server that refuses.
	if !view.command {
		return nil, way{}, &sdk.Error{
			Kind: sdk.ErrUnreachable, Err: refusal,
			Message: fmt.Sprintf("the engine's socket %s is there, but sshd does not forward to it, and the host has no docker command to go through", w.socket),
			Advice:  "allow AllowStreamLocalForwarding and AllowTcpForwarding in sshd_config, or install the docker command there",
		}
	}
	w.command = true
	conn, err = r.through(ctx, w)
	return conn, w, err
}

func (r *remote) fault(err error) error {
	return &sdk.Error{Kind: sdk.ErrUnreachable, Message: "SSH host " + r.host.Name(), Err: err}
}

// lookScript says for each place where the engine's socket can be whether it
// is there for this user. A socket that the address, DOCKER_HOST or the Docker
// context of the host names is the only one: which engine is used must not
// depend on which one happens to run.
const lookScript = `
look() {
  if [ ! -e "$1" ]; then s=missing
  elif [ ! -S "$1" ]; then s=other
  elif [ -r "$1" ] && [ -w "$1" ]; then s=open
  else s=denied; fi
  printf "%s %s\n" "$s" "$1"
}
command -v docker >/dev/null 2>&1 && printf "command docker\n"
named=$1
[ -n "$named" ] || case "${DOCKER_HOST-}" in unix://*) named=${DOCKER_HOST#unix://} ;; esac
[ -n "$named" ] || case "$(docker context inspect --format "{{.Name}} {{.Endpoints.docker.Host}}" 2>/dev/null)" in
  "default "*|"") ;;
  *" unix://"*) named=$(docker context inspect --format "{{.Endpoints.docker.Host}}"); named=${named#unix://} ;;
esac
if [ -n "$named" ]; then look "$named"; exit; fi
look /var/run/docker.sock
look "${XDG_RUNTIME_DIR:-/run/user/$(id -u)}/docker.sock"
look "$HOME/.docker/run/docker.sock"
`

// view is what was seen on a host.
type view struct {
	command bool       // there is a docker command
	sockets []sighting // in order of preference
}

type sighting struct{ state, socket string }

func (r *remote) look(ctx context.Context) (view, error) {
	text, err := r.host.Output(ctx, "sh", "-c", lookScript, "sh", r.socket)
	if err != nil {
		return view{}, err
	}
	return parseView(text), nil
}

// parseView reads what lookScript wrote. The host may write anything.
func parseView(text string) view {
	var v view
	for line := range strings.Lines(text) {
		state, socket, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		switch state {
		case "command":
			v.command = true
		case "missing", "other", "open", "denied":
			if strings.HasPrefix(socket, "/") {
				v.sockets = append(v.sockets, sighting{state, socket})
			}
		}
	}
	return v
}

// choose returns the first socket that is open to the user, and else why none
// is.
func (v view) choose() (string, error) {
	var reasons []string
	for _, s := range v.sockets {
		switch s.state {
		case "open":
			return s.socket, nil
		case "denied":
			// It is the one that is meant, and another would be another engine.
			return "", fmt.Errorf("permission denied on the engine's socket %q: the user has to be in the group that may open it (usually docker), and to log in again", clip(s.socket))
		case "other":
			reasons = append(reasons, fmt.Sprintf("%q is no socket", clip(s.socket)))
		default:
			reasons = append(reasons, fmt.Sprintf("there is no %q", clip(s.socket)))
		}
	}
	if len(reasons) == 0 {
		return "", errors.New("the host did not tell where its engine's socket is")
	}
	return "", fmt.Errorf("no engine's socket was found: %s (does the engine run? Name its socket after the host: ssh://user@host/path/docker.sock)", strings.Join(reasons, ", "))
}

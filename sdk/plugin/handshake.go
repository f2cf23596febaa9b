// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"context"
	"errors"
	"os"

	goplugin "github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk/plugin/internal/pb"
)

// ProtocolVersion is the version of the wire protocol that this package
// speaks. It grows when the two sides would no longer understand each other;
// fields and abilities are added without it.
const ProtocolVersion = 1

// What the host and the extension agree on before the first call.
const (
	// CookieKey and CookieValue are in the environment of an extension that
	// was started by a host. They protect nobody; they tell a person who
	// started the binary by hand what it is.
	CookieKey   = "SANDBOXER_EXTENSION_COOKIE"
	CookieValue = "7b6f0d1c-sandboxer-extension"
	// LifelineKey, when it is "stdin" in the extension's environment, says
	// that standard input is a pipe whose end means that the host is gone.
	LifelineKey = "SANDBOXER_EXTENSION_LIFELINE"
	// LifelineStdin is the value of LifelineKey.
	LifelineStdin = "stdin"

	// pluginName is the one thing that an extension serves.
	pluginName = "extension"
)

// Handshake returns what go-plugin compares before the first call.
func Handshake() goplugin.HandshakeConfig {
	return goplugin.HandshakeConfig{ProtocolVersion: ProtocolVersion, MagicCookieKey: CookieKey, MagicCookieValue: CookieValue}
}

// HostPlugins returns, by protocol version, what a host may find in an
// extension. A host hands it to go-plugin's client and the result of
// [Dispense] to [Connect].
func HostPlugins() map[int]goplugin.PluginSet {
	return map[int]goplugin.PluginSet{ProtocolVersion: {pluginName: &wire{}}}
}

// Dispense returns the connection to a started extension.
func Dispense(client goplugin.ClientProtocol) (*grpc.ClientConn, error) {
	raw, err := client.Dispense(pluginName)
	if err != nil {
		return nil, err
	}
	conn, ok := raw.(*grpc.ClientConn)
	if !ok {
		return nil, errors.New("the extension does not speak gRPC")
	}
	return conn, nil
}

// DialOptions returns the gRPC options of the host's side: the size of a
// message is bounded both ways.
func DialOptions() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)),
	}
}

// wire is the go-plugin form of an extension. On the host's side it has no
// server.
type wire struct {
	goplugin.NetRPCUnsupportedPlugin
	server *server
}

// GRPCServer registers the extension. It is the last that go-plugin does
// before it listens, so the environment is no longer needed.
func (w *wire) GRPCServer(_ *goplugin.GRPCBroker, s *grpc.Server) error {
	pb.RegisterExtensionServer(s, w.server)
	for _, name := range pluginEnv {
		if err := os.Unsetenv(name); err != nil {
			return err
		}
	}
	return nil
}

// GRPCClient hands the connection on: a client is made by [Connect], which
// knows the name of the extension.
func (w *wire) GRPCClient(_ context.Context, _ *goplugin.GRPCBroker, conn *grpc.ClientConn) (any, error) {
	return conn, nil
}

var (
	_ goplugin.GRPCPlugin = (*wire)(nil)
	_ sdk.Extension       = (*client)(nil)
)

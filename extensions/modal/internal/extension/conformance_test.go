// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package extension_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/modal/internal/extension"
	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/modal/modaltest"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk/conformance"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk/conformance/conformancetest"
)

// The extension conforms to the rules of every backend, also while the service
// goes wrong.
func TestConformance(t *testing.T) {
	server := serve(t, modaltest.Options{})
	config, err := json.Marshal(map[string]string{
		"server_url": server.URL(), "token_id": testTokenID, "token_secret": testTokenSecret, "state_dir": t.TempDir(), "tunnels": "tcp",
	})
	if err != nil {
		t.Fatal(err)
	}
	lie := func(faults ...modaltest.Fault) func() func() {
		return func() func() { server.Inject(faults...); return server.Heal }
	}
	var broken []modaltest.Fault
	for _, call := range modaltest.Calls() {
		broken = append(broken, modaltest.Fault{Call: call, Lie: modaltest.Refuse, Code: codes.Unavailable})
	}
	const limits = "the server remembers limits and keeps none"
	conformancetest.Test(t, conformance.Suite{
		New: func(context.Context) (sdk.Extension, func(), error) {
			e := extension.New(extension.Options{Getenv: func(string) string { return "" }, Settle: 2 * time.Second})
			return e, func() { _ = e.Close() }, nil
		},
		Config: config,
		Commands: conformance.Commands{
			Lacks: map[conformance.Command]string{conformance.CommandSpin: limits, conformance.CommandHog: limits},
			Serve: func(port int) []string {
				return []string{"python3", "-uc", fmt.Sprintf(`
import socket
s = socket.socket()
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(("127.0.0.1", %d))
s.listen(16)
while True:
    c, _ = s.accept()
    c.sendall(b"conformance\n")
    c.close()
`, port)}
			},
		},
		Faults: map[conformance.Fault]func() func(){
			conformance.FaultLostCreate:       lie(modaltest.Fault{Call: modaltest.CallCreate, Lie: modaltest.LoseAnswer, On: 1}),
			conformance.FaultLostExtend:       lie(modaltest.Fault{Call: modaltest.CallTagsSet, Lie: modaltest.LoseAnswer, On: 1}),
			conformance.FaultLostDestroy:      lie(modaltest.Fault{Call: modaltest.CallTerminate, Lie: modaltest.LoseAnswer, On: 1}),
			conformance.FaultPretendedDestroy: lie(modaltest.Fault{Call: modaltest.CallTerminate, Lie: modaltest.Pretend}),
			conformance.FaultFalseNotFound:    lie(modaltest.Fault{Call: modaltest.CallTagsGet, Lie: modaltest.NotFound}, modaltest.Fault{Call: modaltest.CallWait, Lie: modaltest.NotFound}),
			conformance.FaultLostPage:         lie(modaltest.Fault{Call: modaltest.CallList, Lie: modaltest.DropPage}),
			conformance.FaultRepeatedPage:     lie(modaltest.Fault{Call: modaltest.CallList, Lie: modaltest.RepeatPage}),
			conformance.FaultThrottled:        lie(modaltest.Fault{Call: modaltest.CallTagsGet, Lie: modaltest.Throttle, On: 1}),
			conformance.FaultUnreachable:      lie(broken...),
			conformance.FaultDiedEarly:        lie(modaltest.Fault{Call: modaltest.CallCreate, Lie: modaltest.DieEarly, On: 1}),
		},
		Page:   100,
		Timing: conformance.Timing{Short: 3 * time.Second, Grace: 20 * time.Second},
	}, nil)
}

// full reports whether everything is run at full size.
func full() bool { return os.Getenv("SANDBOXER_TEST_FULL") != "" }

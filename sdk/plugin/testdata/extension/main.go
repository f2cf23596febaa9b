// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

// Command extension is the test extension as a process. FAKE_MODE in its
// environment makes it misbehave before the handshake; the argument "face"
// shows that Serve does not get in the way of other faces.
package main

import (
	"fmt"
	"os"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk/plugin"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk/plugin/internal/fake"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "face" {
		fmt.Println("another face")
		return
	}
	switch os.Getenv("FAKE_MODE") {
	case "exit":
		fmt.Fprintln(os.Stderr, "fake: cannot find my configuration")
		os.Exit(7)
	case "mute":
		time.Sleep(time.Hour)
	case "chatty":
		fmt.Println("Hello! I am not an extension.")
		time.Sleep(time.Hour)
	case "future":
		fmt.Println("1|99|unix|/nowhere|grpc|")
		time.Sleep(time.Hour)
	case "badlog":
		// A line that looks like hclog's and isn't.
		fmt.Fprintln(os.Stderr, `{"@message":1,"@level":[],"@timestamp":{}}`)
	}
	plugin.Logger().Warn("fake extension starts", "mode", os.Getenv("FAKE_MODE"))
	fmt.Fprintln(os.Stderr, "a plain line")
	plugin.Serve(&fake.Extension{})
}

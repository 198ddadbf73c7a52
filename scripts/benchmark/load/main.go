// Command load is the runtime, the hook server and the client of scripts/bench, on the libraries of containerd, dockerd,
// koordlet and the kubelet: grpc-go and net/http.
//
//	load serve cri|docker SOCKET [FLAGS]          a runtime, which has pods and creates more
//	load serve hooks SOCKET [FLAGS]               a hook server, which sets a variable and a cpuset
//	load call cri|docker SOCKET METHOD [FLAGS]    a client
//
// A runtime holds creates from SIGUSR1 to SIGUSR2. A hook server prints "called" at its first call. A client prints
// "ready". For each line "CALLS PAUSE" on stdin it makes that many calls, each after a pause in microseconds, and prints
// a line of JSON: the microseconds of each call, the seconds of all, the end in nanoseconds since 1970, the first error.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

var (
	flags       = flag.NewFlagSet("load", flag.ExitOnError)
	pods        = flags.Int("pods", 200, "pods of the runtime")
	containers  = flags.Int("containers", 1, "containers of each pod")
	listBytes   = flags.Int("list", 0, "least length of the list of containers in bytes")
	delay       = flags.Duration("delay", 0, "time before each answer")
	concurrency = flags.Int("concurrency", 1, "calls at the same time")
	connections = flags.Int("connections", 1, "connections in CRI mode; in Docker mode each concurrent call has its own")
	size        = flags.Int64("transfer", 1<<30, "bytes of an export or import")

	creates sync.RWMutex // read-locked by each create
)

var (
	servers = map[string]func(net.Listener){"cri": serveCRI, "docker": serveDocker, "hooks": serveHooks}
	clients = map[string]func(socket, method string) func(worker int) error{"cri": prepareCRI, "docker": prepareDocker}
)

func main() {
	kind, socket := os.Args[2], os.Args[3]
	if os.Args[1] == "call" {
		must(flags.Parse(os.Args[5:]))
		makeCalls(clients[kind](socket, os.Args[4]))
		return
	}
	must(flags.Parse(os.Args[4:]))
	go holdCreates()
	listener, err := net.Listen("unix", socket)
	must(err)
	servers[kind](listener)
}

type object = map[string]any

func encoded(value any) []byte {
	text, err := json.Marshal(value)
	must(err)
	return text
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func holdCreates() {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGUSR1, syscall.SIGUSR2)
	for received := range signals {
		if received == syscall.SIGUSR1 {
			creates.Lock()
		} else {
			creates.Unlock()
		}
	}
}

type result struct {
	Microseconds []int64 `json:"microseconds"`
	Seconds      float64 `json:"seconds"`
	Ended        int64   `json:"ended"`
	Error        string  `json:"error"`
}

// makeCalls reads the lines on stdin; call takes the number of the concurrent caller.
func makeCalls(call func(worker int) error) {
	fmt.Println("ready")
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		var calls, pause int64
		_, err := fmt.Sscan(lines.Text(), &calls, &pause)
		must(err)
		done := result{Microseconds: make([]int64, calls)}
		var next atomic.Int64
		var failed sync.Once
		var workers sync.WaitGroup
		began := time.Now()
		for worker := range min(int64(*concurrency), calls) {
			workers.Add(1)
			go func() {
				defer workers.Done()
				for at := next.Add(1) - 1; at < calls; at = next.Add(1) - 1 {
					time.Sleep(time.Duration(pause) * time.Microsecond)
					start := time.Now()
					if err := call(int(worker)); err != nil {
						failed.Do(func() { done.Error = err.Error() })
					}
					done.Microseconds[at] = time.Since(start).Microseconds()
				}
			}()
		}
		workers.Wait()
		done.Seconds, done.Ended = time.Since(began).Seconds(), time.Now().UnixNano()
		must(json.NewEncoder(os.Stdout).Encode(done))
	}
}

// What a node of a real cluster has: 7 labels, 7 annotations and 40 variables of each container.

func labels(pod int) map[string]string {
	return map[string]string{
		"io.kubernetes.pod.name":       fmt.Sprintf("web-%d", pod),
		"io.kubernetes.pod.namespace":  "default",
		"io.kubernetes.pod.uid":        fmt.Sprintf("5e3d1b60-8a55-4c0a-9d2e-%012d", pod),
		"io.kubernetes.container.name": "main",
		"app":                          "web",
		"koordinator.sh/qosClass":      "LS",
		"pod-template-hash":            "6d4cf56db6",
	}
}

var annotations = map[string]string{
	"kubernetes.io/config.seen":                      "2026-11-20T00:00:00Z",
	"kubernetes.io/config.source":                    "api",
	"scheduling.koordinator.sh/resource-status":      `{"cpuset":"0-1"}`,
	"io.kubernetes.container.hash":                   "d464c1e4",
	"io.kubernetes.container.restartCount":           "0",
	"io.kubernetes.container.terminationMessagePath": "/dev/termination-log",
	"io.kubernetes.container.ports":                  `[{"name":"http","containerPort":8080,"protocol":"TCP"}]`,
}

func environment(pod int) (variables []string) {
	for number := range 40 {
		address := 1
		if number == 0 {
			address = pod % 250 // no two pods have equal variables
		}
		variables = append(variables, fmt.Sprintf("WEB_%d_SERVICE_HOST=10.96.%d.%d", number, pod/250, address))
	}
	return variables
}

func parent(pod int) string { return fmt.Sprintf("/kubepods/burstable/podu%d", pod) }

func id(number int) string { return fmt.Sprintf("%064x", number+1) }

func containerID(number int) string { return "c" + id(number)[1:] }

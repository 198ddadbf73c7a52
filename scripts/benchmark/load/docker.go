package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const api = "/v1.41"

// body is dockershim's create of a pod's sandbox, or with its id of a container in it.
func body(pod int, sandbox string) object {
	name, kind, all := "POD", "podsandbox", labels(pod)
	if sandbox != "" {
		name, kind, all["io.kubernetes.sandbox.id"] = "main", "container", sandbox
	}
	all["io.kubernetes.container.name"], all["io.kubernetes.docker.type"] = name, kind
	for key, value := range annotations {
		all["annotation."+key] = value
	}
	return object{
		"Image": "registry.local/busybox:1", "Cmd": []string{"sleep", "1000"}, "Labels": all, "Env": environment(pod),
		"HostConfig": object{"CgroupParent": parent(pod), "Memory": 1 << 28, "CpuShares": 512, "CpuQuota": 50_000, "CpuPeriod": 100_000},
	}
}

func serveDocker(listener net.Listener) {
	var list []object
	var made sync.Map // the name and the body of each container by its id
	add := func(id, name string, created object) {
		made.Store(id, [2]string{name, string(encoded(created))})
		list = append(list, object{"Id": id, "Names": []string{"/" + name}, "Image": "registry.local/web:1", "ImageID": "sha256:1",
			"Command": "sleep", "Created": 1, "State": "running", "Status": "Up", "Labels": created["Labels"]})
	}
	for pod := range *pods {
		add(id(pod), fmt.Sprintf("k8s_POD_web-%d_default_u%d_0", pod, pod), body(pod, ""))
		for number := range *containers {
			add(containerID(pod**containers+number), fmt.Sprintf("k8s_main_web-%d_default_u%d_0", pod, pod), body(pod, id(pod)))
		}
	}
	missing := *listBytes - len(encoded(list))
	for _, each := range list {
		each["Command"] = "sleep" + strings.Repeat("x", max(missing, 0)/len(list))
	}
	all := encoded(list)
	var created atomic.Int64
	handle := func(out http.ResponseWriter, in *http.Request) {
		received, err := io.ReadAll(io.LimitReader(in.Body, longest))
		if err != nil {
			return
		}
		time.Sleep(*delay)
		out.Header().Set("Api-Version", "1.41")
		parts := strings.Split(strings.TrimPrefix(in.URL.Path, api), "/")
		reply := func(status int, body []byte) {
			out.Header().Set("Content-Type", "application/json")
			out.WriteHeader(status)
			out.Write(body)
		}
		switch last := parts[len(parts)-1]; {
		case last == "_ping":
			io.WriteString(out, "OK")
		case last == "info":
			reply(200, []byte(`{"CgroupDriver":"cgroupfs","CgroupVersion":"1"}`))
		case last == "events": // there are none
			out.(http.Flusher).Flush()
			<-in.Context().Done()
		case last == "create" && parts[1] == "images":
			rest, _ := io.Copy(io.Discard, in.Body)
			reply(200, encoded(object{"status": fmt.Sprintf("%d bytes", int64(len(received))+rest)}))
		case last == "create":
			creates.RLock()
			defer creates.RUnlock()
			container := containerID(int(created.Add(1)) + 1<<20)
			made.Store(container, [2]string{in.URL.Query().Get("name"), string(received)})
			reply(201, encoded(object{"Id": container, "Warnings": []string{}}))
		case last == "start":
			out.WriteHeader(204)
		case last == "update":
			reply(200, []byte(`{"Warnings":[]}`))
		case last == "export":
			io.Copy(out, io.LimitReader(zeros{}, *size))
		case last == "json" && len(parts) == 3:
			reply(200, all)
		case last == "json":
			if found, ok := made.Load(parts[2]); ok {
				var config object
				must(json.Unmarshal([]byte(found.([2]string)[1]), &config))
				state := object{"Running": true, "StartedAt": "2026-11-20T00:00:00Z"}
				reply(200, encoded(object{"Id": parts[2], "Name": "/" + found.([2]string)[0], "Config": config,
					"HostConfig": config["HostConfig"], "State": state}))
				return
			}
			fallthrough
		default:
			reply(404, []byte(`{"message":"no such thing"}`))
		}
	}
	log.Fatal(http.Serve(listener, http.HandlerFunc(handle)))
}

type zeros struct{}

func (zeros) Read(buffer []byte) (int, error) { clear(buffer); return len(buffer), nil }

// prepareDocker creates what the calls of a method need.
func prepareDocker(socket, method string) func(worker int) error {
	client := http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 2000, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}}
	send := func(method, path string, body io.Reader) (int64, []byte, error) {
		request, err := http.NewRequest(method, "http://docker"+api+path, body)
		must(err)
		if body != nil {
			request.Header.Set("Content-Type", "application/json")
		}
		response, err := client.Do(request)
		if err != nil {
			return 0, nil, err
		}
		defer response.Body.Close()
		start, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
		rest, broken := io.Copy(io.Discard, response.Body)
		if err = errors.Join(err, broken); err == nil && response.StatusCode >= 300 {
			err = fmt.Errorf("%s %s: %d %s", method, path, response.StatusCode, start)
		}
		return int64(len(start)) + rest, start, err
	}
	create := func(name, sandbox string) string {
		_, answer, err := send("POST", "/containers/create?name=k8s_"+name+"_web_default_u1_0", bytes.NewReader(encoded(body(1, sandbox))))
		must(err)
		var created struct{ Id string }
		must(json.Unmarshal(answer, &created))
		return created.Id
	}
	row, known := map[string]struct{ method, path, body string }{
		"ping":   {"GET", "/_ping", ""},
		"list":   {"GET", "/containers/json", ""},
		"create": {"POST", "/containers/create?name=k8s_main_web_default_u1_0", ""},
		"start":  {"POST", "/containers/{id}/start", ""},
		"update": {"POST", "/containers/{id}/update", `{"CpuShares":256}`},
		"export": {"GET", "/containers/{id}/export", ""},
		"import": {"POST", "/images/create?fromSrc=-&repo=bench&tag=1", ""},
	}[method]
	if !known {
		log.Fatalf("unknown method %q", method)
	}
	if method == "create" {
		row.body = string(encoded(body(1, create("POD", ""))))
	} else if strings.Contains(row.path, "{id}") {
		row.path = strings.ReplaceAll(row.path, "{id}", create("main", create("POD", "")))
	}
	return func(int) error {
		var content io.Reader
		if method == "import" {
			content = io.LimitReader(zeros{}, *size)
		} else if row.body != "" {
			content = strings.NewReader(row.body)
		}
		length, answer, err := send(row.method, row.path, content)
		if err == nil && method == "export" && length != *size || method == "import" && !bytes.Contains(answer, fmt.Appendf(nil, "%d bytes", *size)) {
			err = fmt.Errorf("%s: %d bytes received, %.100s", method, length, answer)
		}
		return err
	}
}

// Pages opened from a folder (file:) may not start a Worker, and the search of this site is one. This one lives in a
// hidden frame instead: messages are handed over as events, and importScripts adds script elements.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const home = new URL(url, location.href)
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      const inside = frame.contentWindow
      const load = (source) =>
        new Promise((done, failed) => {
          const script = inside.document.createElement("script")
          script.src = new URL(source, home)
          script.onload = done
          script.onerror = failed
          inside.document.body.append(script)
        })
      inside.importScripts = (...sources) => sources.reduce((before, next) => before.then(() => load(next)), Promise.resolve())
      inside.postMessage = (data) => {
        const event = new MessageEvent("message", { data })
        this.dispatchEvent(event)
        if (this.onmessage) this.onmessage(event)
      }
      this.inside = inside
      this.ready = load(home)
    }
    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })))
    }
    terminate() {}
  }
}

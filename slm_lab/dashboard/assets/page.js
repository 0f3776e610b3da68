// What happens in the browser: theme, filters, and how cells of the grid are drawn.
// Everything from a run goes into text nodes; nothing here makes markup of it.

(function () {
  "use strict";

  const root = document.documentElement;
  const darkByDefault = window.matchMedia("(prefers-color-scheme: dark)");

  function stored() {
    try {
      return window.localStorage.getItem("slm-lab-theme");
    } catch (error) {
      return null; // private windows may refuse
    }
  }

  function currentTheme() {
    const choice = stored();
    if (choice === "light" || choice === "dark") return choice;
    return darkByDefault.matches ? "dark" : "light";
  }

  function apply(theme) {
    root.dataset.theme = theme;
    root.dataset.agThemeMode = theme;
    return theme;
  }

  apply(currentTheme());

  let filters = { words: [], envs: [], algorithms: [], statuses: [] };

  function passes(params) {
    const run = params.data; // params is the row
    if (!run) return true;
    const text = [run.key, run.algorithm, run.env, run.status, run.kind].join(" ").toLowerCase();
    return (
      filters.words.every((word) => text.includes(word)) &&
      (!filters.envs.length || filters.envs.includes(run.env)) &&
      (!filters.algorithms.length || filters.algorithms.includes(run.algorithm)) &&
      (!filters.statuses.length || filters.statuses.includes(run.status))
    );
  }

  window.dash_clientside = Object.assign({}, window.dash_clientside, {
    page: {
      set_theme: function (clicks) {
        if (clicks) {
          const next = root.dataset.theme === "dark" ? "light" : "dark";
          try {
            window.localStorage.setItem("slm-lab-theme", next);
          } catch (error) {
            // then it lasts until the page is left
          }
          return apply(next);
        }
        return apply(currentTheme());
      },

      filter_runs: function (text, envs, algorithms, statuses) {
        filters = {
          words: (text || "").toLowerCase().split(/\s+/).filter(Boolean),
          envs: envs || [],
          algorithms: algorithms || [],
          statuses: statuses || [],
        };
        const grid = window.dash_ag_grid;
        const refresh = (api) => api && api.onFilterChanged();
        if (grid && grid.getApi) {
          try {
            refresh(grid.getApi("grid"));
          } catch (error) {
            grid.getApiAsync("grid").then(refresh); // the grid is still being made
          }
        }
        return filters;
      },
    },
  });

  const wholeNumbers = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
  const fractions = new Intl.NumberFormat("en-US", {
    minimumFractionDigits: 2,
    maximumFractionDigits: 2,
  });
  const shown = (format) => (value) =>
    value === null || value === undefined ? "" : format.format(value);

  window.dashAgGridFunctions = Object.assign(window.dashAgGridFunctions || {}, {
    passes: passes,
    count: shown(wholeNumbers),
    number: shown(fractions),
  });

  const make = (...parts) => window.React.createElement(...parts);
  const short = new Intl.NumberFormat("en-US", { notation: "compact" }); // 889,000 -> 889K
  const twoLines = (first, second) =>
    make(
      "span",
      { className: "two-lines" },
      make("span", null, first),
      make("small", null, second)
    );

  window.dashAgGridComponentFunctions = Object.assign(window.dashAgGridComponentFunctions || {}, {
    Status: function (props) {
      return make(
        "span",
        { className: "status" },
        make("i", { className: "dot " + props.value }),
        props.value
      );
    },

    // Two lines: what the run is called, and what it trains.
    Run: function (props) {
      return twoLines(props.value, props.data.what);
    },

    // The last 100 episodes of training, and below it the evaluation, if there was one.
    Recent: function (props) {
      const evaluated = props.data.evaluated;
      return twoLines(
        shown(fractions)(props.value),
        evaluated === null || evaluated === undefined ? "" : "eval " + fractions.format(evaluated)
      );
    },

    Sessions: function (props) {
      return twoLines(props.value, props.data.kind === "search" ? "trials" : "finished");
    },

    // 2026-05-07 08:00 -> 05-07 above 08:00
    Started: function (props) {
      return twoLines((props.value || "").slice(5, 10), (props.value || "").slice(11));
    },

    Progress: function (props) {
      if (props.value === null || props.value === undefined) return null;
      const percent = Math.round(100 * props.value);
      return make(
        "span",
        { className: "progress", role: "img", "aria-label": percent + " %" },
        make("span", { className: "track" }, make("i", { style: { width: percent + "%" } })),
        make("b", null, percent + " %"),
        make("small", null, short.format(props.data.frame || 0))
      );
    },

    Reached: function (props) {
      const mark = { reached: "✓", below: "✗" }[props.value] || "";
      return make("span", { className: "reached-" + props.value }, mark + " " + props.value);
    },
  });
})();

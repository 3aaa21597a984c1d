/** The tools that draw: each turns pointer events and keys into entries of a drawing. Points are pixels of the image. */

const near = (one, other, distance) => Math.hypot(one[0] - other[0], one[1] - other[1]) <= distance;

class Tool {
  /** `board` has the drawing, the chosen kind and brush width, and `add(entry)`. */
  constructor(board) {
    this.board = board;
    this.points = [];
  }

  get busy() {
    return this.points.length > 0;
  }

  cancel() {
    this.points = [];
  }

  down() {}

  moved() {}

  up() {}

  /** Space was pressed at a point. */
  set(point) {
    this.down(point);
  }

  finish() {}

  /** Finish and add what was drawn. */
  add(entry) {
    this.points = [];
    this.board.add(entry);
  }
}

export class PolygonTool extends Tool {
  down(point) {
    const { reach } = this.board;
    if (this.points.length > 2 && near(point, this.points[0], 2 * reach)) this.finish();
    else if (!this.busy || !near(point, this.points.at(-1), reach / 2)) this.points.push(point);
  }

  /** Remove the last point. */
  back() {
    this.points.pop();
  }

  finish() {
    if (this.points.length < 3) return this.board.say("A polygon needs three points.");
    return this.add({ type: "polygon", kind: this.board.kind, rings: [this.points] });
  }
}

export class BoxTool extends Tool {
  down(point) {
    this.points = [point, point];
  }

  moved(point) {
    if (this.busy) this.points = [this.points[0], point];
  }

  /** Space sets one corner, then the other. */
  set(point) {
    if (!this.busy) return this.down(point);
    this.moved(point);
    return this.finish();
  }

  up() {
    const [first, last] = this.points;
    if (this.busy && !near(first, last, this.board.reach / 2)) this.finish();
    else this.cancel();
  }

  finish() {
    const [[x0, y0], [x1, y1]] = this.points;
    if (x0 === x1 || y0 === y1) return this.board.say("Move to the opposite corner first.");
    return this.add({ type: "box", kind: this.board.kind, box: [Math.min(x0, x1), Math.min(y0, y1), Math.max(x0, x1), Math.max(y0, y1)] });
  }
}

export class BrushTool extends Tool {
  constructor(board, erases = false) {
    super(board);
    this.erases = erases;
  }

  down(point) {
    this.points = [point];
  }

  moved(point) {
    if (this.busy && !near(point, this.points.at(-1), Math.max(0.5, this.board.width / 10))) this.points.push(point);
  }

  /** Space puts the brush down and lifts it again. */
  set(point) {
    if (!this.busy) return this.down(point);
    this.moved(point);
    return this.finish();
  }

  up() {
    if (this.busy) this.finish();
  }

  finish() {
    const { width, kind } = this.board;
    this.add(this.erases ? { type: "erase", width, points: this.points } : { type: "stroke", kind, width, points: this.points });
  }
}
